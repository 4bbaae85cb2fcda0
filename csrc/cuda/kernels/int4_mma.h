// Weight-only int4 for many rows by mma.sync, on every GPU from sm_80 on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/int4.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Output tile of a block, and over how many blocks K is split.
struct MmaConfig {
  int block_n, block_m, splits;

  bool operator==(const MmaConfig&) const = default;
};

// K and group_size are multiples of 32, x and weight start at 16-byte boundaries, x is bf16 or fp16, and scales are
// of its type or fp32.
bool serves_int4_mma(const Int4Linear& p);

MmaConfig choose_int4_mma(const Int4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_mma_fits(const Int4Linear& p, const MmaConfig& config);

// In bytes; 0 for one split.
size_t int4_mma_workspace(const Int4Linear& p, const MmaConfig& config);

cudaError_t launch_int4_mma(const Int4Linear& p, const MmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_mma_instances();
std::string int4_mma_instance(const Int4Linear& p, const MmaConfig& c);

}  // namespace aoext::cuda
