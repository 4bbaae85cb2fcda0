#include "sycl/launch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "sycl/device.h"
#include "sycl/images.h"

namespace aoext::xpu {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;
using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

Bundle build(const sycl::queue& queue, const Image& image) {
  const std::vector<std::byte> spirv(reinterpret_cast<const std::byte*>(image.begin),
                                     reinterpret_cast<const std::byte*>(image.end));
  auto source = syclexp::create_kernel_bundle_from_source(queue.get_context(), syclexp::source_language::spirv, spirv);
  return syclexp::build(source, std::vector<sycl::device>{queue.get_device()});
}

// What has been built for one context and device. Contexts live as long as the process: PyTorch keeps one.
struct Built {
  std::map<std::string, Bundle> bundles;                  // by image
  std::unordered_map<std::string, sycl::kernel> kernels;  // by name, which is unique over all images of a device
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

const Image& find_image(const char* name) {
  const auto& all = images();
  return *std::find_if(all.begin(), all.end(), [&](const Image& image) { return std::strcmp(image.name, name) == 0; });
}

}  // namespace

sycl::kernel kernel(const sycl::queue& queue, const KernelName& name) {
  static std::mutex mutex;
  static std::unordered_map<Key, Built, KeyHash> all;
  const std::lock_guard lock(mutex);
  Built& built = all[Key{queue.get_context(), queue.get_device()}];
  const std::string full = std::string(name.image) + ":" + name.name;
  const auto found = built.kernels.find(full);
  if (found != built.kernels.end()) return found->second;
  auto bundle = built.bundles.find(name.image);
  if (bundle == built.bundles.end()) bundle = built.bundles.emplace(name.image, build(queue, find_image(name.image))).first;
  return built.kernels.emplace(full, bundle->second.ext_oneapi_get_kernel("__sycl_kernel_" + name.name)).first->second;
}

void raise_sycl_error(const KernelName& name, const std::exception& error) {
  throw std::runtime_error(std::string("aoext: kernel ") + name.name + " of " + name.image + " failed: " + error.what());
}

Element element(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return kBf16;
    case ScalarType::Half: return kFp16;
    case ScalarType::Float: return kFp32;
    case ScalarType::Char: return kInt8;
    case ScalarType::Float8_e4m3fn: return kE4m3;
    case ScalarType::Float8_e5m2: return kE5m2;
    default: return kInt32;
  }
}

}  // namespace aoext::xpu
