// Products with 8-bit weights [N, K] whose rows have one scale, or none.
#pragma once

#include "cuda/operands.h"
#include "cuda/plan_rowwise.h"

namespace aoext::cuda {

// By a plan for p that is not generic. Sums that are int32 results have no scales, whatever stands there.
Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const Operands& of);

// Null where no kernel of this folder serves.
inline OptionalTensor rowwise(const LinearProblem& p, const Operands& of) {
  const RowwisePlan plan = plan_rowwise(p, device_of(of.input), are_aligned({&of.weight.values}));
  if (is_generic(plan.kernel)) return std::nullopt;
  return rowwise_by(plan, p, of);
}

}  // namespace aoext::cuda
