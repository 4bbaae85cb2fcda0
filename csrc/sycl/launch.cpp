#include "sycl/launch.h"

#include <map>
#include <mutex>
#include <unordered_map>

#include "sycl/images.h"

namespace aoext::xpu {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;
using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

// What has been built for one context and device. Contexts live as long as the process: PyTorch keeps one.
struct Built {
  std::map<std::string, Bundle> bundles;                  // by image
  std::unordered_map<std::string, sycl::kernel> kernels;  // by image and name
};

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

// Calls f(what has been built for this queue) while nobody else may.
template <class F>
auto locked(const sycl::queue& queue, const F& f) {
  static std::mutex mutex;
  static std::unordered_map<Key, Built, KeyHash> all;
  const std::lock_guard lock(mutex);
  return f(all[Key{queue.get_context(), queue.get_device()}]);
}

const Image* find_image(const std::string& name) {
  static const auto by_name = [] {
    std::unordered_map<std::string, const Image*> all;
    for (const Image& image : images()) all.emplace(image.name, &image);
    return all;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

Bundle& bundle(Built& built, const sycl::queue& queue, const std::string& name) {
  const auto found = built.bundles.find(name);
  if (found != built.bundles.end()) return found->second;
  const Image* const image = find_image(name);
  if (image == nullptr) throw std::runtime_error("aoext: this build has no image " + name);
  const std::vector<std::byte> spirv(reinterpret_cast<const std::byte*>(image->begin),
                                     reinterpret_cast<const std::byte*>(image->end));
  auto source = syclexp::create_kernel_bundle_from_source(queue.get_context(), syclexp::source_language::spirv, spirv);
  return built.bundles.emplace(name, syclexp::build(source, std::vector<sycl::device>{queue.get_device()})).first->second;
}

}  // namespace

sycl::kernel kernel(const sycl::queue& queue, const KernelName& name) {
  return locked(queue, [&](Built& built) {
    const std::string full = name.image + ":" + name.name;
    const auto found = built.kernels.find(full);
    if (found != built.kernels.end()) return found->second;
    return built.kernels.emplace(full, bundle(built, queue, name.image).ext_oneapi_get_kernel("__sycl_kernel_" + name.name))
        .first->second;
  });
}

bool has_image(const std::string& name) { return find_image(name) != nullptr; }

void build(const sycl::queue& queue, const std::string& image) {
  locked(queue, [&](Built& built) { return &bundle(built, queue, image); });
}

void raise_sycl_error(const KernelName& name, const std::exception& error) {
  throw std::runtime_error("aoext: kernel " + name.name + " of " + name.image + " failed: " + error.what());
}

}  // namespace aoext::xpu
