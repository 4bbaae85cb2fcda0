// Products of an input of 8 bits whose operands have a scale a block, or whose weight is int4, on CUDA.
#pragma once

#include "common/explain.h"
#include "cuda/operands.h"
#include "cuda/plan_scaled.h"
#include "cuda/quantize_rowwise.h"

namespace aoext::cuda {

// The input has 8 bits or, of int4, is one that form_of had quantised to 16; without an input_scale it is quantised here, where
// the plan quantizes.
struct ScaledOperands {
  const Tensor &input, &weight, &scale;
  const Tensor *input_scale, *zero_point;  // the second of int4
  OptionalTensor bias;
  OptionalTensor sums = {};       // of the input, as form_of says; or none
  int64_t input_scale_pitch = 0;  // as scale_pitch_of says; or 0, where input_scale is as the operator takes it
};

ScaledPlan plan_of(const LinearProblem& p, const ScaledOperands& operands);

// What a product with int4 wants of an input that is quantised for it.
RowsForm form_of(const ScaledPlan& plan, const LinearProblem& p);

// The pitch that a product by blocks wants of the scales of an input that is quantised for it (quantize_blockwise.h); or 0.
int64_t scale_pitch_of(const ScaledPlan& plan, const LinearProblem& p);

// Null where no kernel of this folder serves.
OptionalTensor scaled(const LinearProblem& p, const ScaledOperands& operands);
OptionalTensor scaled_by(const ScaledPlan& plan, const LinearProblem& p, const ScaledOperands& operands);

// For aoext.explain: of an operator whose weight, scales and zeros are tensors `weight`, `scale` and, of int4, the one behind it;
// of one that quantises its input, to `dtype` or, of 8-bit weights, to their type.
Explanation explain_scaled(const Call& call, size_t weight, size_t scale);

}  // namespace aoext::cuda
