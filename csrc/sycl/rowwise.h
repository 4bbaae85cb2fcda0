// Products with 8-bit weights [N, K] that have one scale a row, on an XPU.
#pragma once

#include "common/checks.h"

namespace aoext::xpu {

struct RowwiseOperands {
  const Tensor &input, &weight;
  const Tensor* input_scale;   // null: none
  const Tensor* weight_scale;  // null: none, and the result is the int32 sum
  OptionalTensor bias;
};

// Null where no kernel of this folder serves.
OptionalTensor rowwise(const LinearProblem& p, const RowwiseOperands& operands);

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype);

}  // namespace aoext::xpu
