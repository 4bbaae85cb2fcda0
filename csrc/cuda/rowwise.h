// Products with 8-bit weights [N, K] that have one scale a row, on CUDA.
#pragma once

#include "cuda/plan_rowwise.h"
#include "generic/rowwise.h"

namespace aoext::cuda {

// Null where no kernel of this folder serves.
OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands);

// By a plan for p that is not generic.
Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const generic::RowwiseOperands& operands);

}  // namespace aoext::cuda
