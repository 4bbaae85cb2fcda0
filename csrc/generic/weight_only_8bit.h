// Weight-only int8 and float8 differ in their checks alone: w = q · scale, one scale a row.
#pragma once

#include "generic/blocks.h"

namespace aoext::generic {

inline Tensor weight_only_8bit(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale) {
  return linear_by_blocks(p, input, [&](int64_t first, int64_t count) {
    const auto rows = [&](const Tensor& t) { return aten::to(aten::narrow(t, 0, first, count), ScalarType::Float); };
    return aten::mul(rows(weight), rows(scale));
  });
}

}  // namespace aoext::generic
