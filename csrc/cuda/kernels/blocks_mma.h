// Weight-only products with a scale a block of w for many rows of x by mma.sync, on every GPU from sm_80 on: what rowwise_mma.cuh
// computes of weights whose scales an earlier kernel lays out (arrange_scales.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cuda/kernels/blocks.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Output tile of a block, and over how many blocks K is split.
struct BlocksMmaConfig {
  int block_n, block_m, splits;

  bool operator==(const BlocksMmaConfig&) const = default;
};

// x and y of bf16 or fp16, rows of w of whole 16 bytes, block_k a multiple of 16 or all of K; M, N and K are 2^30 at most; x and
// weight start at 16-byte boundaries.
bool blocks_mma_takes(const BlockLinear& p);
BlocksMmaConfig choose_blocks_mma(const BlockLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool blocks_mma_fits(const BlockLinear& p, const BlocksMmaConfig& config);
size_t blocks_mma_workspace(const BlockLinear& p, const BlocksMmaConfig& config);  // bytes
cudaError_t launch_blocks_mma(const BlockLinear& p, const BlocksMmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string blocks_mma_instances();
std::string blocks_mma_instance(const BlockLinear& p, const BlocksMmaConfig& c);

}  // namespace aoext::cuda
