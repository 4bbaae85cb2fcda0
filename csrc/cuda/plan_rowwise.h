// Which kernel a product with 8-bit weights gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// RowwiseDecodeConfig for few rows of x: a ring of weights in shared memory for each warp (kernels/rowwise_decode.cuh). For more:
// RowwiseWgmmaConfig, both operands of 8 bits, and WeightOnlyWgmmaConfig, x of 16 bits, on compute capability 9.0
// (kernels/sm90a/rowwise_wgmma.cuh, weight_only_wgmma.cuh); RowwiseMmaConfig anywhere (kernels/rowwise_mma.cuh).
struct RowwisePlan {
  RowwiseKernel kernel = Generic{};
  bool copies = false;     // both operands go first to rows that start at multiples of 16 bytes and end in zeros
  int64_t K = 0;           // of the operands then, or the problem's
  bool quantizes = false;  // x first, by decode itself

  bool operator==(const RowwisePlan&) const = default;
};

// The problem as kernels see it, without its pointers, over K of its operands.
RowwiseLinear rowwise_linear(const LinearProblem& p, int64_t K);

// int8_mm, scaled_mm_rowwise, bf16i8bf16_rowwise and bf16f8bf16_rowwise. `aligned`: the weight starts at a multiple of 16 bytes.
RowwisePlan plan_rowwise(const LinearProblem& p, const Device& device, bool aligned);

// scaled_linear_rowwise in one launch, or the product that is left once quantize_rowwise has made x of the weight's type.
RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const RowwisePlan& plan);

// For aoext.explain.
Explanation explain(const RowwisePlan& plan, const LinearProblem& p);

}  // namespace aoext::cuda
