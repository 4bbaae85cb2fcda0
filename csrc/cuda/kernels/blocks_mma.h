// Weight-only products with a scale a block of w for many rows of x by mma.sync, on every GPU from sm_80 on: what rowwise_mma.cuh
// computes of weights whose scales an earlier kernel lays out (arrange_scales.cuh).
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

// Output tile of a block, and over how many blocks K is split.
struct BlocksMmaConfig {
  int block_n, block_m, splits;

  bool operator==(const BlocksMmaConfig&) const = default;
};

template <>
struct KernelOf<BlocksMmaConfig> : KernelTraits<BlocksMmaConfig, BlockLinear> {
  static constexpr const char* kName = "blocks_mma";
  static constexpr auto kFields = std::to_array<Field<BlocksMmaConfig>>(
      {{"block_n", &BlocksMmaConfig::block_n}, {"block_m", &BlocksMmaConfig::block_m}, {"splits", &BlocksMmaConfig::splits}});
  // x and y of bf16 or fp16, rows of w of whole 16 bytes, block_k a multiple of 16 or all of K; M, N and K are 2^30 at most; x
  // and weight start at 16-byte boundaries.
  static bool takes(const BlockLinear& p);
  static Choice<BlocksMmaConfig> choose(const BlockLinear& p, const Device& device);
  static bool fits(const BlockLinear& p, const BlocksMmaConfig& c);
  static size_t workspace(const BlockLinear& p, const BlocksMmaConfig& c);
  static cudaError_t launch(const BlockLinear& p, const BlocksMmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const BlockLinear& p, const BlocksMmaConfig& c);
};

}  // namespace aoext::cuda
