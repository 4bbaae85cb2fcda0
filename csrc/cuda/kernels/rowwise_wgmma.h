// The 8-bit by 8-bit product by wgmma: kernels/sm90a/rowwise_wgmma.cuh.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise.h"
#include "cuda/kernels/wgmma_config.h"

namespace aoext::cuda {

template <>
struct KernelOf<RowwiseWgmmaConfig> : KernelTraits<RowwiseWgmmaConfig, RowwiseLinear> {
  static constexpr const char* kName = "rowwise_wgmma";
  static constexpr auto kFields = kWgmmaFields<RowwiseWgmmaConfig>;
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel computes this problem: x and weight of one 8-bit type, rows of a multiple of 16 bytes, everything 16-byte
  // aligned; float8 to 16 bits alone, since the engine's sums are not worth more.
  static bool takes(const RowwiseLinear& p);
  static Choice<RowwiseWgmmaConfig> choose(const RowwiseLinear& p, const Device& device);
  static bool fits(const RowwiseLinear& p, const RowwiseWgmmaConfig& c);
  static cudaError_t launch(const RowwiseLinear& p, const RowwiseWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const RowwiseLinear& p, const RowwiseWgmmaConfig& c);
};

}  // namespace aoext::cuda
