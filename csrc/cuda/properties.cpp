#include "cuda/properties.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

#include "cuda/gpus.h"

namespace aoext::cuda {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

Features features_of(int capability) {
  const char* const forced = std::getenv("AOEXT_CUDA_FAMILY");
  const std::string wanted = forced == nullptr ? "" : forced;
  if (!wanted.empty() && wanted != "sm80" && wanted != "sm90")
    throw std::runtime_error("aoext: AOEXT_CUDA_FAMILY must be sm80 or sm90, got " + wanted);
  const bool newer = capability >= 90 && wanted != "sm80";
  return {.wgmma = newer && capability == 90, .clusters = newer, .overlap = newer};
}

// What follows from the capability.
void set_capability(Device& device, int capability) {
  device.capability = capability;
  device.float8_units = capability == 89 || capability >= 120;
  device.has_kernels = capability >= 80;
  if (device.has_kernels) device.features = features_of(capability);
}

// Numbers of a GPU that gpus.h does not know: by its clocks, which may read 0 on some, and by its size then.
void estimate(Device& device, int index) {
  constexpr double kDoubleDataRate = 2, kLeast = 5000;  // bytes a microsecond and multiprocessor: that of an L40S is 6000
  const double clock = attribute(cudaDevAttrMemoryClockRate, index), bits = attribute(cudaDevAttrGlobalMemoryBusWidth, index);
  const double published = kDoubleDataRate * clock * 1e3 * bits / 8 / 1e6;
  device.bandwidth = published > 0 ? kReached * published : kLeast * device.multiprocessors;
  constexpr double kUsualClock = 1.5e6;  // kHz
  const double khz = attribute(cudaDevAttrClockRate, index), each = operations_a_clock(device.capability);
  const double bf16 = device.multiprocessors * each * (khz > 0 ? khz : kUsualClock) * 1e3 / 1e12;
  device.peaks = {bf16, device.capability >= 89 ? 2 * bf16 : bf16, 2 * bf16};
}

// A part of a GPU has as much of its memory and its tensor cores as of its multiprocessors.
void set_numbers(Device& device, const Gpu& gpu) {
  const double part = std::min(1.0, static_cast<double>(device.multiprocessors) / gpu.multiprocessors);
  device.bandwidth = part * gpu.bandwidth;
  device.peaks = {part * gpu.peaks.bf16, part * gpu.peaks.fp8, part * gpu.peaks.int8};
  device.fits = gpu.fits;
}

Device ask(int index) {
  Device device{};
  device.fits = kUsualFits;
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  // PyTorch for ROCm calls its GPUs "cuda" too, and there is no driver of NVIDIA's beside it: no kernel of ours serves those.
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) {
    cudaGetLastError();
    return device;
  }
  check(error, "cudaGetDeviceProperties");
  device.name = properties.name;
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_memory = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  device.shared_memory_per_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
  device.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  set_capability(device,
                 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index));
  const auto known =
      std::find_if(std::begin(kGpus), std::end(kGpus), [&](const Gpu& gpu) { return device.name.rfind(gpu.begin, 0) == 0; });
  if (known != std::end(kGpus))
    set_numbers(device, *known);
  else
    estimate(device, index);
  return device;
}

Device device_like(const Gpu& gpu) {
  Device device{};
  device.name = gpu.name;
  device.multiprocessors = gpu.multiprocessors, device.shared_memory = gpu.shared_memory;
  device.shared_memory_per_multiprocessor = gpu.shared_memory_per_multiprocessor, device.l2_bytes = gpu.l2_bytes;
  set_capability(device, gpu.capability);
  set_numbers(device, gpu);
  return device;
}

// What `make()` returned when a device was first asked for; it stays where it is.
template <class Key, class Make>
const Device& remembered(const Key& key, Make&& make) {
  static std::mutex mutex;
  static std::map<Key, Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = devices.find(key);
  return known != devices.end() ? known->second : devices.emplace(key, make()).first->second;
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("aoext: ") + what + ": " + cudaGetErrorString(error));
}

const Device& device_of(int index) {
  return remembered(index, [&] { return ask(index); });
}

const Device& device_named(const std::string& name) {
  std::string names;
  for (const Gpu& gpu : kGpus) {
    if (name == gpu.name) return remembered(name, [&] { return device_like(gpu); });
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  }
  throw std::runtime_error("aoext: gpu must be one of " + names + ", got " + name);
}

}  // namespace aoext::cuda
