// Weights of 8 bits with one scale a row: w = q · scale.
#pragma once

#include "generic/blocks.h"

namespace aoext::generic {

// Rows [first, first + count) of w, float32 [count, K].
inline Tensor dequantize_rows(const Tensor& weight, const Tensor& scale, int64_t first, int64_t count) {
  const auto rows = [&](const Tensor& t) { return aten::to(aten::narrow(t, 0, first, count), ScalarType::Float); };
  return aten::mul(rows(weight), rows(scale));
}

inline Tensor weight_only_8bit(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                               const OptionalTensor& bias) {
  return linear_by_blocks(
      p, input, [&](int64_t first, int64_t count) { return dequantize_rows(weight, scale, first, count); }, bias);
}

}  // namespace aoext::generic
