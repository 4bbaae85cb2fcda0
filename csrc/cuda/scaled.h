// Products of an input of 8 bits whose operands have a scale a block, or whose weight is int4, on CUDA.
#pragma once

#include "common/explain.h"
#include "cuda/operands.h"
#include "cuda/plan_scaled.h"

namespace aoext::cuda {

struct ScaledOperands {
  const Tensor &input, &weight, &input_scale, &scale;
  const Tensor* zero_point;  // of int4
  OptionalTensor bias;
};

// Null where no kernel of this folder serves.
OptionalTensor scaled(const LinearProblem& p, const ScaledOperands& operands);

// For aoext.explain: of an operator whose weight, scales and zeros are tensors `weight`, `scale` and, of int4, the one behind it;
// of one that quantises its input, to `dtype` or, of 8-bit weights, to their type.
Explanation explain_scaled(const Call& call, size_t weight, size_t scale);

}  // namespace aoext::cuda
