#include "sycl/launch.h"

#include <algorithm>
#include <list>
#include <unordered_map>

namespace aoext::xpu {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;

sycl::kernel build(const sycl::context& context, const sycl::device& device, const Module& module) {
  const std::vector<std::byte> spirv(reinterpret_cast<const std::byte*>(module.begin),
                                     reinterpret_cast<const std::byte*>(module.end));
  auto source = syclexp::create_kernel_bundle_from_source(context, syclexp::source_language::spirv, spirv);
  auto bundle = syclexp::build(source, std::vector<sycl::device>{device});
  return bundle.ext_oneapi_get_kernel(std::string("__sycl_kernel_") + module.kernel);
}

struct Targets {
  std::mutex mutex;
  std::list<Target> all;
};

// Never destroyed: at exit the SYCL runtime may be gone first.
Targets& targets() {
  static Targets& known = *new Targets;
  return known;
}

}  // namespace

const Module* find_module(const std::string& image, const std::string& kernel) {
  static const auto by_name = [] {
    std::unordered_map<std::string, const Module*> all;
    for (const Module& module : modules()) all.emplace(module.name(), &module);
    return all;
  }();
  const auto found = by_name.find(image + "/" + kernel);
  return found == by_name.end() ? nullptr : found->second;
}

const Module& module(const std::string& image, const std::string& kernel) {
  const Module* const found = find_module(image, kernel);
  if (found == nullptr) throw std::runtime_error("aoext: this build has no kernel " + image + "/" + kernel);
  return *found;
}

Target::Target(const sycl::context& context, const sycl::device& device)
    : device(ask(device)), context_(context), device_(device), kernels_(modules().size()) {}

const sycl::kernel& Target::kernel(const Module& module) {
  auto& own = kernels_[place(module)];
  if (const sycl::kernel* const known = own) return *known;
  const std::lock_guard lock(mutex_);
  if (own == nullptr) own = new sycl::kernel(build(context_, device_, module));
  return *own;
}

Target& target_of(const sycl::queue& queue) {
  thread_local Target* last = nullptr;
  if (last != nullptr && last->is(queue)) return *last;
  const std::lock_guard lock(targets().mutex);
  for (Target& known : targets().all)
    if (known.is(queue)) return *(last = &known);
  return *(last = &targets().all.emplace_back(queue.get_context(), queue.get_device()));
}

bool is_built(const Module& module) {
  const std::lock_guard lock(targets().mutex);
  const auto has = [&](const Target& target) { return target.has(module); };
  return std::any_of(targets().all.begin(), targets().all.end(), has);
}

void raise_sycl_error(const Module& module, const std::exception& error) {
  throw std::runtime_error("aoext: kernel " + module.name() + " failed: " + error.what());
}

}  // namespace aoext::xpu
