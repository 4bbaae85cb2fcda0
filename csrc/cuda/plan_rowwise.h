// Which kernel a product with 8-bit weights gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

struct RowwisePlan {
  RowwiseKernels kernel = Generic{};
  bool copies = false;     // both operands go first to rows that start at multiples of 16 bytes and end in zeros
  int64_t K = 0;           // of the operands then, or the problem's
  bool quantizes = false;  // x first, by decode itself

  bool operator==(const RowwisePlan&) const = default;
};

// The problem as kernels see it, without its pointers, over K of its operands.
RowwiseLinear rowwise_linear(const LinearProblem& p, int64_t K);

// For int8_mm, and other products that formats.h says are rowwise. `aligned`: the weight starts at a multiple of 16 bytes.
RowwisePlan plan_rowwise(const LinearProblem& p, const Device& device, bool aligned);

// For scaled_linear in one launch, or the product that is left once quantize has made x of the weight's type.
RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const RowwisePlan& plan);
std::string instance(const RowwisePlan& plan, const LinearProblem& p);
Explanation explain(const RowwisePlan& plan, const LinearProblem& p);

}  // namespace aoext::cuda
