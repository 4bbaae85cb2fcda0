// Products of codes of 4 bits with a power of two for 32 k, or an e4m3 for 16, for few rows of x in bf16: mxfp4 and nvfp4.
// Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise_decode.h"

namespace aoext::cuda {

struct Fp4DecodeConfig : RowwiseDecodeConfig {
  bool operator==(const Fp4DecodeConfig&) const = default;
};

template <>
struct KernelOf<Fp4DecodeConfig> : KernelTraits<Fp4DecodeConfig, BlockLinear> {
  static constexpr const char* kName = "fp4_decode";
  static constexpr auto kFields = kDecodeFields<Fp4DecodeConfig>;
  // M <= 16, x of bf16, blocks of one row by 32 k with scales of e8m0 or by 16 with e4m3, K a multiple of 128; x and weight at
  // 16-byte alignment, scales at 8 bytes. It is fast where the table is e2m1's, and right for any.
  static bool takes(const BlockLinear& p);
  static Choice<Fp4DecodeConfig> choose(const BlockLinear& p, const Device& device);
  static bool fits(const BlockLinear& p, const Fp4DecodeConfig& c);
  static cudaError_t launch(const BlockLinear& p, const Fp4DecodeConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const BlockLinear& p, const Fp4DecodeConfig& c);
};

}  // namespace aoext::cuda
