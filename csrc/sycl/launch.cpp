#include "sycl/launch.h"

#include <mutex>
#include <unordered_map>

#include "sycl/modules.h"

namespace aoext::xpu {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;

// The kernels of one context and device, by full name. Contexts live as long as the process: PyTorch keeps one.
using Built = std::unordered_map<std::string, sycl::kernel>;

struct Key {
  sycl::context context;
  sycl::device device;
  bool operator==(const Key& other) const { return context == other.context && device == other.device; }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<sycl::context>()(key.context) * 31 + std::hash<sycl::device>()(key.device);
  }
};

const Module* find_module(const std::string& full_name) {
  static const auto by_name = [] {
    std::unordered_map<std::string, const Module*> all;
    for (const Module& module : modules()) all.emplace(KernelName{module.image, module.kernel}.full(), &module);
    return all;
  }();
  const auto found = by_name.find(full_name);
  return found == by_name.end() ? nullptr : found->second;
}

sycl::kernel build(const sycl::queue& queue, const std::string& full_name) {
  const Module* const module = find_module(full_name);
  if (module == nullptr) throw std::runtime_error("aoext: this build has no kernel " + full_name);
  const std::vector<std::byte> spirv(reinterpret_cast<const std::byte*>(module->begin),
                                     reinterpret_cast<const std::byte*>(module->end));
  auto source = syclexp::create_kernel_bundle_from_source(queue.get_context(), syclexp::source_language::spirv, spirv);
  auto bundle = syclexp::build(source, std::vector<sycl::device>{queue.get_device()});
  return bundle.ext_oneapi_get_kernel(std::string("__sycl_kernel_") + module->kernel);
}

}  // namespace

sycl::kernel kernel(const sycl::queue& queue, const KernelName& name) {
  static std::mutex mutex;
  static std::unordered_map<Key, Built, KeyHash> all;
  const std::lock_guard lock(mutex);
  Built& built = all[Key{queue.get_context(), queue.get_device()}];
  const std::string full_name = name.full();
  const auto found = built.find(full_name);
  return found != built.end() ? found->second : built.emplace(full_name, build(queue, full_name)).first->second;
}

bool has_kernel(const KernelName& name) { return find_module(name.full()) != nullptr; }

void raise_sycl_error(const KernelName& name, const std::exception& error) {
  throw std::runtime_error("aoext: kernel " + name.full() + " failed: " + error.what());
}

}  // namespace aoext::xpu
