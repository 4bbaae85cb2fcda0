// Products of scaled.h by wgmma: kernels/sm90a/scaled_wgmma.cuh.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/scaled.h"
#include "cuda/kernels/wgmma_config.h"

namespace aoext::cuda {

template <>
struct KernelOf<ScaledWgmmaConfig> : KernelTraits<ScaledWgmmaConfig, ScaledLinear> {
  static constexpr const char* kName = "scaled_wgmma";
  static constexpr auto kFields = kWgmmaFields<ScaledWgmmaConfig>;
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel computes this problem: x of e4m3 or int8 and a result of 16 bits, rows of a multiple of 16 bytes,
  // everything 16-byte aligned. A w of 8 bits has blocks of multiples of 64 rows by 128 k, whatever the scales are, or of 32 k
  // with scales of float32 or, where they are exactly 32 k, exponents; int4 has groups of multiples of 32 k with scales of 16 or
  // 32 bits, N a multiple of 8.
  static bool takes(const ScaledLinear& p);
  static Choice<ScaledWgmmaConfig> choose(const ScaledLinear& p, const Device& device);
  static bool fits(const ScaledLinear& p, const ScaledWgmmaConfig& c);
  static size_t workspace(const ScaledLinear& p, const ScaledWgmmaConfig& c);
  static cudaError_t launch(const ScaledLinear& p, const ScaledWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const ScaledLinear& p, const ScaledWgmmaConfig& c);
};

// How sums of x lie that int4 needs.
ChunkSums scaled_sums(const ScaledLinear& p);
// The pitch that the kernel wants of scales of x; 0: as rows have them. It lays them out itself where they come otherwise.
int64_t scaled_wgmma_pitch(const ScaledLinear& p, const WgmmaConfig& c);

}  // namespace aoext::cuda
