// Products of an input of 8 bits whose operands have a scale a block, or whose weight is int4, on CUDA.
#pragma once

#include "cuda/operands.h"
#include "cuda/plan_scaled.h"
#include "cuda/quantize.h"

namespace aoext::cuda {

// How an input lies that was quantised for a product, beside its values and scales: as the product wanted it (form_of,
// scale_pitch_of), or as scaled_mm takes it.
struct QuantizedForm {
  OptionalTensor sums = {};
  int64_t scale_pitch = 0;
};

// What a product with int4 wants of an input that is quantised for it.
RowsForm form_of(const ScaledPlan& plan, const LinearProblem& p);

// The pitch that a product by blocks wants of the scales of an input that is quantised for it (quantize.h); or 0.
int64_t scale_pitch_of(const ScaledPlan& plan, const LinearProblem& p);

// By a plan that is not generic. The input has 8 bits or, of int4, is one that form_of had quantised to 16; without an
// input_scale it is quantised here, where the plan quantizes.
Tensor scaled_by(const ScaledPlan& plan, const LinearProblem& p, const Operands& of, const QuantizedForm& form = {});

}  // namespace aoext::cuda
