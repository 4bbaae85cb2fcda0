// Products with 8-bit weights [N, K] that have one scale a row, on CUDA.
#pragma once

#include "common/explain.h"
#include "cuda/operands.h"
#include "cuda/plan_rowwise.h"
#include "generic/rowwise.h"

namespace aoext::cuda {

// Null where no kernel of this folder serves.
OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands);

// By a plan for p that is not generic.
Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const generic::RowwiseOperands& operands);

// For aoext.explain, by plan_rowwise or plan_scaled_linear.
template <RowwisePlan (*kPlan)(const LinearProblem&, const Device&, bool)>
Explanation explain_rowwise(const Call& call) {
  // Weights that are not aligned stay where they are; an input is copied.
  return explain(kPlan(call.problem, device_of(call.tensor(0)), are_aligned({&call.tensor(1)})), call.problem);
}

}  // namespace aoext::cuda
