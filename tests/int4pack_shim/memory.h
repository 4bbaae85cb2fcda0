// Memory of the device under test, AOEXT_TEST_DEVICE: cpu, cuda or xpu. It is not freed before work that may use it is done.
#pragma once

#include <cstdlib>
#include <cstring>

#define AOEXT_PASTE_(a, b) a##b
#define AOEXT_PASTE(a, b) AOEXT_PASTE_(a, b)
#define AOEXT_DEVICE_IS(device) (AOEXT_PASTE(AOEXT_IS_, AOEXT_TEST_DEVICE) == AOEXT_PASTE(AOEXT_IS_, device))
#define AOEXT_IS_cpu 1
#define AOEXT_IS_cuda 2
#define AOEXT_IS_xpu 3

constexpr auto kDevice = aoext::int4pack::DeviceType::AOEXT_TEST_DEVICE;

#if AOEXT_DEVICE_IS(cpu)
namespace memory {
inline void* stream() { return nullptr; }
inline void* allocate(size_t bytes) { return std::malloc(bytes); }  // of the exact size, for AddressSanitizer
inline void deallocate(void* data) { std::free(data); }
inline void fill(void* data, int byte, size_t bytes) { std::memset(data, byte, bytes); }
inline void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
}  // namespace memory

#elif AOEXT_DEVICE_IS(cuda)
#include <cuda_runtime_api.h>

#include <cstdio>
namespace memory {
inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(2);
}
inline cudaStream_t stream() {
  static const cudaStream_t side = [] {
    cudaStream_t made;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
  }();
  return side;
}
inline void* allocate(size_t bytes) {
  void* data;
  check(cudaMallocAsync(&data, bytes + 16, stream()));
  return data;
}
inline void deallocate(void* data) { check(cudaFreeAsync(data, stream())); }
inline void fill(void* data, int byte, size_t bytes) { check(cudaMemsetAsync(data, byte, bytes, stream())); }
inline void copy(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  check(cudaStreamSynchronize(stream()));
}
}  // namespace memory

#elif AOEXT_DEVICE_IS(xpu)
#include <sycl/sycl.hpp>
namespace memory {
inline sycl::queue& queue() {
  static sycl::queue made{sycl::property::queue::in_order()};
  return made;
}
inline void* stream() { return &queue(); }
inline void* allocate(size_t bytes) { return sycl::aligned_alloc_device(64, bytes + 64, queue()); }
inline void deallocate(void* data) {
  queue().wait();
  sycl::free(data, queue());
}
inline void fill(void* data, int byte, size_t bytes) { queue().memset(data, byte, bytes); }
inline void copy(void* to, const void* from, size_t bytes) { queue().memcpy(to, from, bytes).wait(); }
}  // namespace memory
#endif
