#include "cuda/properties.h"

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace aoext::cuda {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

Family family_of(int capability) {
  if (capability < 80) return Family::none;
  const char* const forced = std::getenv("AOEXT_CUDA_FAMILY");
  const std::string wanted = forced == nullptr ? "" : forced;
  if (!wanted.empty() && wanted != "sm80" && wanted != "sm90")
    throw std::runtime_error("aoext: AOEXT_CUDA_FAMILY must be sm80 or sm90, got " + wanted);
  // Kernels for sm_90a run on compute capability 9.0 and nowhere else.
  return capability == 90 && wanted != "sm80" ? Family::sm90 : Family::sm80;
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("aoext: ") + what + ": " + cudaGetErrorString(error));
}

const Device& device_of(int index) {
  static std::mutex mutex;
  static std::unordered_map<int, Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = devices.find(index);
  if (known != devices.end()) return known->second;
  Device device{};
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_memory = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  const int capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index);
  device.float8_units = capability == 89;
  device.family = family_of(capability);
  return devices.emplace(index, device).first->second;
}

}  // namespace aoext::cuda
