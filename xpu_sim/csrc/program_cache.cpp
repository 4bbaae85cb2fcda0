// A layer of the OpenCL loader that keeps compiled kernels in a folder (XPU_SIM_PROGRAMS): what one process has compiled, others
// load. The CPU device takes a second for a kernel of SPIR-V, and every process of a test run compiles the same ones.
//
// A program of SPIR-V is made of the binary that lies under its name, if there is one, and is put there once it is built. The
// name is a hash of all that the binary depends on: the SPIR-V, the device and its driver, and what the environment says of
// compiling. The options that it is built with come later than that: the file has them, and a build with others is refused.
#include <CL/cl_layer.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define XPU_SIM_EXPORT extern "C" __attribute__((visibility("default")))

extern char** environ;

namespace {

const cl_icd_dispatch* below = nullptr;  // the functions that the loader would call without this layer
cl_icd_dispatch own{};

// What is known of a program of SPIR-V, until it is built.
struct Program {
  std::string file;
  bool is_stored;       // it was made of the binary there
  std::string options;  // that this binary was built with
};
std::mutex mutex;
std::map<cl_program, Program> programs;

// FNV-1a.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) state_ = (state_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

std::string text_of(cl_device_id device, cl_device_info what) {
  size_t bytes = 0;
  if (below->clGetDeviceInfo(device, what, 0, nullptr, &bytes) != CL_SUCCESS) return "";
  std::string text(bytes, '\0');
  below->clGetDeviceInfo(device, what, bytes, text.data(), nullptr);
  return text;
}

std::vector<cl_device_id> devices_of(cl_context context) {
  size_t bytes = 0;
  if (below->clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, nullptr, &bytes) != CL_SUCCESS) return {};
  std::vector<cl_device_id> devices(bytes / sizeof(cl_device_id));
  below->clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices.data(), nullptr);
  return devices;
}

// Variables that compiling hangs on, those of the OpenCL device and of SYCL, in an order that does not change.
std::vector<std::string> environment() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable)
    for (const char* begin : {"CL_CONFIG_", "SYCL_PROGRAM_"})
      if (std::strncmp(*variable, begin, std::strlen(begin)) == 0) found.emplace_back(*variable);
  std::sort(found.begin(), found.end());
  return found;
}

std::string file_of(const std::vector<cl_device_id>& devices, const void* spirv, size_t bytes) {
  Hash hash;
  hash.add(spirv, bytes);
  for (cl_device_id device : devices)
    for (cl_device_info what : {CL_DEVICE_NAME, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_DEVICE_EXTENSIONS})
      hash.add(text_of(device, what));
  for (const std::string& variable : environment()) hash.add(variable);
  char name[40];
  std::snprintf(name, sizeof name, "/%016" PRIx64 "-%zu", hash.value(), bytes);
  return std::getenv("XPU_SIM_PROGRAMS") + std::string(name);
}

// The options that a file begins with, a zero behind them, and its binary. Whether there is one.
bool read(const std::string& file, std::string& options, std::vector<unsigned char>& binary) {
  std::ifstream in(file, std::ios::binary);
  if (!in || !std::getline(in, options, '\0')) return false;
  binary.assign(std::istreambuf_iterator<char>(in), {});
  return !binary.empty();
}

// In one move, since others may write and read it meanwhile. A folder that cannot be written keeps nothing.
void write(const std::string& file, const std::string& options, const std::vector<unsigned char>& binary) {
  const std::string unfinished = file + "." + std::to_string(getpid());
  std::ofstream out(unfinished, std::ios::binary);
  out.write(options.c_str(), static_cast<std::streamsize>(options.size()) + 1);
  out.write(reinterpret_cast<const char*>(binary.data()), static_cast<std::streamsize>(binary.size()));
  out.close();
  if (!out || std::rename(unfinished.c_str(), file.c_str()) != 0) std::remove(unfinished.c_str());
}

// The binary that a program was built into, of a context with one device.
std::vector<unsigned char> binary_of(cl_program program) {
  size_t bytes = 0;
  if (below->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr) != CL_SUCCESS) return {};
  std::vector<unsigned char> binary(bytes);
  unsigned char* const data = binary.data();
  if (below->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, const_cast<unsigned char**>(&data), nullptr) !=
      CL_SUCCESS)
    return {};
  return binary;
}

cl_program CL_API_CALL create_with_il(cl_context context, const void* spirv, size_t bytes, cl_int* error) {
  const std::vector<cl_device_id> devices = devices_of(context);
  if (devices.size() != 1) return below->clCreateProgramWithIL(context, spirv, bytes, error);
  Program known{file_of(devices, spirv, bytes), false, ""};
  std::vector<unsigned char> binary;
  cl_program program = nullptr;
  if (read(known.file, known.options, binary)) {
    const size_t length = binary.size();
    const unsigned char* data = binary.data();
    program = below->clCreateProgramWithBinary(context, 1, devices.data(), &length, &data, nullptr, error);
    known.is_stored = program != nullptr;
  }
  if (program == nullptr) program = below->clCreateProgramWithIL(context, spirv, bytes, error);
  const std::lock_guard lock(mutex);
  if (program != nullptr) programs[program] = known;
  return program;
}

cl_int CL_API_CALL build(cl_program program, cl_uint count, const cl_device_id* devices, const char* options,
                         void(CL_CALLBACK* notify)(cl_program, void*), void* data) {
  Program known;
  {
    const std::lock_guard lock(mutex);
    const auto found = programs.find(program);
    if (found == programs.end()) return below->clBuildProgram(program, count, devices, options, notify, data);
    known = found->second;
    programs.erase(found);
  }
  const std::string asked = options == nullptr ? "" : options;
  if (known.is_stored && asked != known.options) {
    std::fprintf(stderr, "xpu_sim: %s was built with the options \"%s\", and now with \"%s\": remove it\n", known.file.c_str(),
                 known.options.c_str(), asked.c_str());
    return CL_INVALID_BUILD_OPTIONS;
  }
  const cl_int error = below->clBuildProgram(program, count, devices, options, notify, data);
  if (error == CL_SUCCESS && notify == nullptr && !known.is_stored)
    if (const std::vector<unsigned char> binary = binary_of(program); !binary.empty()) write(known.file, asked, binary);
  return error;
}

// Another program may get the address of one that ends without having been built.
cl_int CL_API_CALL release(cl_program program) {
  const std::lock_guard lock(mutex);
  programs.erase(program);
  return below->clReleaseProgram(program);
}

}  // namespace

XPU_SIM_EXPORT CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t bytes, void* value, size_t* needed) {
  static const char kName[] = "xpu_sim's kept programs";
  const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
  if (what != CL_LAYER_API_VERSION && what != CL_LAYER_NAME) return CL_INVALID_VALUE;
  const bool asks_name = what == CL_LAYER_NAME;
  const size_t size = asks_name ? sizeof kName : sizeof version;
  if (value != nullptr && bytes < size) return CL_INVALID_VALUE;
  if (value != nullptr) std::memcpy(value, asks_name ? static_cast<const void*>(kName) : &version, size);
  if (needed != nullptr) *needed = size;
  return CL_SUCCESS;
}

XPU_SIM_EXPORT CL_API_ENTRY cl_int CL_API_CALL clInitLayerWithProperties(cl_uint entries, const cl_icd_dispatch* target,
                                                                         cl_uint* own_entries, const cl_icd_dispatch** layer,
                                                                         const cl_layer_properties* /*properties*/) {
  if (target == nullptr || own_entries == nullptr || layer == nullptr) return CL_INVALID_VALUE;
  below = target;
  std::memcpy(&own, target, std::min(sizeof own, entries * sizeof(void*)));
  own.clCreateProgramWithIL = create_with_il, own.clBuildProgram = build, own.clReleaseProgram = release;
  *own_entries = sizeof own / sizeof(void*), *layer = &own;
  return CL_SUCCESS;
}

XPU_SIM_EXPORT CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch* target, cl_uint* own_entries,
                                                           const cl_icd_dispatch** layer) {
  return clInitLayerWithProperties(entries, target, own_entries, layer, nullptr);
}

XPU_SIM_EXPORT CL_API_ENTRY cl_int CL_API_CALL clDeinitLayer() { return CL_SUCCESS; }
