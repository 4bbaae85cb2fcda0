// sycl_to_spirv SOURCE FOLDER [-Dname …] [-Ifolder …]: SYCL kernels to SPIR-V, at build time.
//
// FOLDER, "<source>.<variant>", is an image. It gets a module for each kernel, <kernel>.spv, and their list, modules.inc:
// lines AOEXT_MODULE(source, variant, kernel).
//
// An image that is there already and was made of the same (FOLDER/made_of) stays as it is: builds that share a folder compile it
// once.
//
// The SYCL runtime carries a compiler for kernels in source form (libsycl-jit) and writes what it makes when
// SYCL_DUMP_IMAGES is set. It then has the device compile the SPIR-V, which fails for modules with a GPU's built-ins or
// properties on the device that is at hand: what has been written by then decides.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sycl/sycl.hpp>

namespace fs = std::filesystem;
namespace syclexp = sycl::ext::oneapi::experimental;

namespace {

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> modules_in(const fs::path& folder) {
  std::vector<fs::path> modules;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".spv") modules.push_back(entry.path());
  return modules;
}

// All that an image is made of: the compiler, the options, the source, the headers beside it and those shared with the host.
std::string ingredients(const fs::path& source, const std::vector<std::string>& options) {
  Dl_info runtime{};
  dladdr(reinterpret_cast<const void*>(&sycl::device::get_devices), &runtime);
  const fs::path compiler = fs::canonical(runtime.dli_fname);
  std::ostringstream all;
  all << compiler << " " << fs::last_write_time(compiler).time_since_epoch().count() << "\n";
  for (const std::string& option : options) all << option << "\n";
  std::set<fs::path> files{source};
  for (const auto& entry : fs::directory_iterator(source.parent_path()))
    if (entry.path().extension() == ".h") files.insert(entry.path());
  for (const char* const shared : {"element.h", "layout.h"}) files.insert(source.parent_path() / "../../common" / shared);
  for (const fs::path& file : files) {
    const std::string content = read(file);
    all << file.filename() << " " << content.size() << " " << std::hash<std::string>()(content) << "\n";
  }
  return all.str();
}

// Runs in the child: prints what the compiler says and leaves the modules in the current folder.
int compile(const std::string& source, const std::vector<std::string>& options) {
  try {
    const sycl::context context{sycl::device{sycl::cpu_selector_v}};
    auto bundle = syclexp::create_kernel_bundle_from_source(context, syclexp::source_language::sycl, source);
    std::string log;
    syclexp::compile(bundle, syclexp::properties{syclexp::build_options{options}, syclexp::save_log{&log}});
    std::cerr << log;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}

// The name of a module's only kernel, as its source has it (SPIR-V specification, 2.3 and OpEntryPoint).
std::string kernel_of(const std::string& module) {
  constexpr size_t kHeader = 5;
  constexpr uint32_t kOpEntryPoint = 15;
  const std::string prefix = "__sycl_kernel_";
  const auto word = [&](size_t i) {
    uint32_t value = 0;
    std::memcpy(&value, module.data() + i * sizeof value, sizeof value);
    return value;
  };
  std::string found;
  const size_t words = module.size() / sizeof(uint32_t);
  for (size_t i = kHeader; i < words && word(i) >> 16 != 0; i += word(i) >> 16) {
    if ((word(i) & 0xFFFFu) != kOpEntryPoint) continue;
    const std::string name = module.data() + (i + 3) * sizeof(uint32_t);
    if (!found.empty() || name.rfind(prefix, 0) != 0) throw std::runtime_error("a module has more than one kernel of ours");
    found = name.substr(prefix.size());
  }
  if (found.empty()) throw std::runtime_error("a module has no kernel");
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: sycl_to_spirv SOURCE FOLDER [-Dname ...] [-Ifolder ...]\n";
    return 2;
  }
  const fs::path source = fs::absolute(argv[1]), folder = fs::absolute(argv[2]), log = folder / "log";
  std::vector<std::string> options{argv + 3, argv + argc};
  options.push_back("-fsycl-device-code-split=per_kernel");
  const std::string made_of = ingredients(source, options);
  if (fs::exists(folder / "modules.inc") && read(folder / "made_of") == made_of) {
    fs::last_write_time(folder / "modules.inc", fs::file_time_type::clock::now());  // newer than what the build compares it with
    return 0;
  }
  fs::create_directories(folder);
  fs::remove(folder / "made_of");
  for (const fs::path& module : modules_in(folder)) fs::remove(module);
  fs::remove(folder / "modules.inc");

  const pid_t child = fork();
  if (child == 0) {
    fs::current_path(folder);
    setenv("SYCL_DUMP_IMAGES", "1", 1);
    setenv("SYCL_CACHE_PERSISTENT", "0", 1);
    if (freopen(log.c_str(), "w", stderr) == nullptr) _exit(2);
    const int code = compile(read(source), options);
    fflush(stderr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);

  const std::vector<fs::path> modules = modules_in(folder);
  const std::string said = read(log);
  const bool made = !modules.empty() && WIFEXITED(status);  // a crash may have come before the last of them
  if (!made || said.find("warning:") != std::string::npos) {
    std::cerr << source.filename().string() << ":\n" << said;
    if (!made) return 1;
  }
  std::set<std::string> kernels;
  for (const fs::path& module : modules) {
    const std::string kernel = kernel_of(read(module));
    kernels.insert(kernel);
    fs::rename(module, folder / (kernel + ".spv"));
  }
  std::ofstream list(folder / "modules.inc");
  for (const std::string& kernel : kernels)
    list << "AOEXT_MODULE(" << folder.stem().string() << ", " << folder.extension().string().substr(1) << ", " << kernel << ")\n";
  fs::remove(log);
  if (!list.flush()) return 1;
  std::ofstream(folder / "made_of") << made_of;
  return 0;
}
