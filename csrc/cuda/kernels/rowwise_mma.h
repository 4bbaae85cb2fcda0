// Products with 8-bit weights for many rows by mma.sync, on every GPU from sm_80 on.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

// Output tile of a block, over how many blocks K is split, and whether the tensor cores are given float8 as it is.
struct RowwiseMmaConfig {
  int block_n, block_m, splits, float8;

  bool operator==(const RowwiseMmaConfig&) const = default;
};

template <>
struct KernelOf<RowwiseMmaConfig> : KernelTraits<RowwiseMmaConfig, RowwiseLinear> {
  static constexpr const char* kName = "rowwise_mma";
  static constexpr auto kFields = std::to_array<Field<RowwiseMmaConfig>>({{"block_n", &RowwiseMmaConfig::block_n},
                                                                          {"block_m", &RowwiseMmaConfig::block_m},
                                                                          {"splits", &RowwiseMmaConfig::splits},
                                                                          {"float8", &RowwiseMmaConfig::float8}});
  // Either x is of the weight's type, and y is bf16, fp16, fp32 or, of int8, int32; or x and y are bf16 or fp16. K is a multiple
  // of 16; M, N and K are 2^30 at most, K of int8 131071, lest the sum overflow; x and weight start at 16-byte boundaries.
  static bool takes(const RowwiseLinear& p);
  // Where the GPU's mma.sync has float8 (compute capability 8.9; on 9.0 it becomes fp16 there too, so nothing is won), it is
  // used, but what it adds up is too short for a float32 y, which always goes through fp16.
  static Choice<RowwiseMmaConfig> choose(const RowwiseLinear& p, const Device& device);
  static bool fits(const RowwiseLinear& p, const RowwiseMmaConfig& c);
  static size_t workspace(const RowwiseLinear& p, const RowwiseMmaConfig& c);
  static cudaError_t launch(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const RowwiseLinear& p, const RowwiseMmaConfig& c);
};

}  // namespace aoext::cuda
