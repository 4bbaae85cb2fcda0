// Products with 8-bit weights [N, K] whose rows have one scale, or none.
#pragma once

#include "cuda/operands.h"
#include "cuda/plan_rowwise.h"

namespace aoext::cuda {

// By a plan for p that is not generic.
Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const Tensor& input, const Tensor& weight,
                  const Tensor* input_scale, const Tensor* scale, const Tensor* bias);

// Null where no kernel of this folder serves.
inline OptionalTensor rowwise(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor* input_scale,
                              const Tensor* scale, const Tensor* bias) {
  const RowwisePlan plan = plan_rowwise(p, device_of(input), are_aligned({&weight}));
  if (is_generic(plan.kernel)) return std::nullopt;
  return rowwise_by(plan, p, input, weight, input_scale, scale, bias);
}

}  // namespace aoext::cuda
