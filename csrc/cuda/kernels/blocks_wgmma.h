// Weight-only products by wgmma with a scale a block of w, from 17 rows of x on: kernels/sm90a/blocks_wgmma.cuh.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/wgmma_config.h"

namespace aoext::cuda {

struct BlocksWgmmaConfig : WgmmaConfig {
  bool operator==(const BlocksWgmmaConfig&) const = default;
};

template <>
struct KernelOf<BlocksWgmmaConfig> : KernelTraits<BlocksWgmmaConfig, BlockLinear> {
  static constexpr const char* kName = "blocks_wgmma";
  static constexpr auto kFields = kWgmmaFields<BlocksWgmmaConfig>;
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel reads a problem of these sizes at all: int8 and e4m3 in blocks of a multiple of 32 along k, lut4 of 16, or
  // of all of K. It also wants a 16-byte alignment of x, weight and y.
  static bool takes(const BlockLinear& p);
  static Choice<BlocksWgmmaConfig> choose(const BlockLinear& p, const Device& device);
  static bool fits(const BlockLinear& p, const BlocksWgmmaConfig& c);
  static size_t workspace(const BlockLinear& p, const BlocksWgmmaConfig& c);
  static cudaError_t launch(const BlockLinear& p, const BlocksWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const BlockLinear& p, const BlocksWgmmaConfig& c);
};

}  // namespace aoext::cuda
