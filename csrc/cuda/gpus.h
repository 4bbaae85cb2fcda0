// GPUs whose numbers are known: what properties.cpp looks a device up in, and what plans can be asked about without having one.
#pragma once

#include "cuda/fitted.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// What reading reaches of a memory's published bandwidth: 4.66 of 4.8 TB/s, measured on an H200.
constexpr double kReached = 4.66 / 4.8;

constexpr const Fits* kUsualFits = &kH200Fits;  // of a GPU that has no table of its own, scaled

struct Gpu {
  const char* name;   // as people say
  const char* begin;  // of the name that CUDA gives it; the first line that fits counts
  int capability, multiprocessors;
  int shared_memory, shared_memory_per_multiprocessor;  // bytes; the first of a block
  int64_t l2_bytes;
  double bandwidth;
  Peaks peaks;
  const Fits* fits = kUsualFits;
};

// Sources: NVIDIA's data sheets (H200: 2024, H100: 2023, A100: 2021, L40S: 2023, B200: HGX B200, 2024) and the white paper of the
// Ada architecture (RTX 4090, tensor cores that add up in float32); peaks without sparsity. Shared memory: CUDA C++ Programming
// Guide, "Compute Capabilities". A GPU without float8 multiplies it as fp16. The bandwidths of the H200 and the H100 SXM
// are measured; that of the B200 is what its driver's memory clock and width come to, since its data sheet rounds 7.67 up to 8.
constexpr int64_t kMiB = 1 << 20;
constexpr int kKiB = 1 << 10;
constexpr Gpu kGpus[] = {
    {"H200", "NVIDIA H200", 90, 132, 227 * kKiB, 228 * kKiB, 60 * kMiB, 4.66e6, {989, 1979, 1979}},
    {"H100 SXM", "NVIDIA H100 80GB HBM3", 90, 132, 227 * kKiB, 228 * kKiB, 50 * kMiB, 3.19e6, {989, 1979, 1979}},
    {"H100 PCIe", "NVIDIA H100 PCIe", 90, 114, 227 * kKiB, 228 * kKiB, 50 * kMiB, kReached * 2.0e6, {756, 1513, 1513}},
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 163 * kKiB, 164 * kKiB, 40 * kMiB, kReached * 2.039e6, {312, 312, 624}},
    {"A100 80GB PCIe", "NVIDIA A100 80GB PCIe", 80, 108, 163 * kKiB, 164 * kKiB, 40 * kMiB, kReached * 1.935e6, {312, 312, 624}},
    {"A100 40GB", "NVIDIA A100", 80, 108, 163 * kKiB, 164 * kKiB, 40 * kMiB, kReached * 1.555e6, {312, 312, 624}},
    {"L40S", "NVIDIA L40S", 89, 142, 99 * kKiB, 100 * kKiB, 96 * kMiB, kReached * 0.864e6, {362, 733, 733}},
    {"RTX 4090", "NVIDIA GeForce RTX 4090", 89, 128, 99 * kKiB, 100 * kKiB, 72 * kMiB, kReached * 1.008e6, {165, 330, 661}},
    {"B200", "NVIDIA B200", 100, 148, 227 * kKiB, 228 * kKiB, 126 * kMiB, kReached * 7.67e6, {2250, 4500, 4500}},
};

// Dense bf16 operations of a multiprocessor's tensor cores in a clock, for a GPU that is not above; 8 bits have twice as many
// where there are units for them.
constexpr int operations_a_clock(int capability) {
  return capability >= 110 ? 1024 : capability >= 100 ? 8192 : capability >= 90 ? 4096 : capability > 80 ? 1024 : 2048;
}

}  // namespace aoext::cuda
