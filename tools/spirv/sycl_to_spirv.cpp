// sycl_to_spirv SOURCE OUTPUT.spv [-Dname …] [-Ifolder …]: SYCL kernels to SPIR-V, at build time.
//
// The SYCL runtime carries a compiler for kernels in source form (libsycl-jit) and writes what it makes when
// SYCL_DUMP_IMAGES is set. It then has the device compile the SPIR-V, which for an image with a GPU's
// built-ins may fail or crash on the device that is at hand, so that all of it happens in a child process
// and the image decides.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
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

// Runs in the child: prints what the compiler says and leaves the image in the current folder.
int compile(const std::string& source, std::vector<std::string> options) {
  options.push_back("-fsycl-device-code-split=off");  // one image for all kernels
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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: sycl_to_spirv SOURCE OUTPUT.spv [-Dname ...] [-Ifolder ...]\n";
    return 2;
  }
  const fs::path source = fs::absolute(argv[1]), output = fs::absolute(argv[2]);
  const fs::path scratch = output.string() + ".d";
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  const fs::path log = scratch / "log";

  const pid_t child = fork();
  if (child == 0) {
    fs::current_path(scratch);
    setenv("SYCL_DUMP_IMAGES", "1", 1);
    setenv("SYCL_CACHE_PERSISTENT", "0", 1);
    if (freopen(log.c_str(), "w", stderr) == nullptr) _exit(2);
    const int code = compile(read(source), {argv + 3, argv + argc});
    fflush(stderr);
    _exit(code);
  }
  waitpid(child, nullptr, 0);

  fs::path image;
  for (const auto& entry : fs::directory_iterator(scratch))
    if (entry.path().extension() == ".spv") image = entry.path();
  const std::string said = read(log);
  if (image.empty() || said.find("warning:") != std::string::npos) {
    std::cerr << source.filename().string() << ":\n" << said;
    if (image.empty()) return 1;
  }
  fs::rename(image, output);
  fs::remove_all(scratch);
  return 0;
}
