// Weight-only products by wgmma, from 17 rows of x on: kernels/sm90a/weight_only_wgmma.cuh. Weights of 8 bits
// here, int4 in int4_wgmma.h.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise.h"
#include "cuda/kernels/wgmma_config.h"

namespace aoext::cuda {

template <>
struct KernelOf<WeightOnlyWgmmaConfig> : KernelTraits<WeightOnlyWgmmaConfig, RowwiseLinear> {
  static constexpr const char* kName = "weight_only_wgmma";
  static constexpr auto kFields = kWgmmaFields<WeightOnlyWgmmaConfig>;
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of x, weight and y.
  static bool takes(const RowwiseLinear& p);
  static Choice<WeightOnlyWgmmaConfig> choose(const RowwiseLinear& p, const Device& device);
  static bool fits(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c);
  static size_t workspace(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c);
  static cudaError_t launch(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c);
};

}  // namespace aoext::cuda
