// Products with a scale a block of w for few rows of x: what rowwise_decode.cuh computes of blocks_decode.cuh's weights.
// Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise_decode.h"

namespace aoext::cuda {

struct BlocksDecodeConfig : RowwiseDecodeConfig {
  bool operator==(const BlocksDecodeConfig&) const = default;
};

template <>
struct KernelOf<BlocksDecodeConfig> : KernelTraits<BlocksDecodeConfig, BlockLinear> {
  static constexpr const char* kName = "blocks_decode";
  static constexpr auto kFields = kDecodeFields<BlocksDecodeConfig>;
  // M <= 16, rows of w of whole 16 bytes, block_k a multiple of 16 or all of K, x and weight at 16-byte alignment; x of bf16 or
  // fp16.
  static bool takes(const BlockLinear& p);
  static Choice<BlocksDecodeConfig> choose(const BlockLinear& p, const Device& device);
  static bool fits(const BlockLinear& p, const BlocksDecodeConfig& c);
  static cudaError_t launch(const BlockLinear& p, const BlocksDecodeConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const BlockLinear& p, const BlocksDecodeConfig& c);
};

// Whether weights are multiplied as they are, and scales in float32.
bool blocks_decode_is_exact(const BlockLinear& p);

}  // namespace aoext::cuda
