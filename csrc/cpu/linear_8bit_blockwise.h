// Weight-only 8 bits with a scale a block; one scale a row is the row-wise product.
#pragma once

#include "cpu/linear.h"

namespace aoext::cpu {

inline Tensor linear_8bit_blockwise(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                                    const OptionalTensor& bias) {
  const BlockwiseWeight blocks(p, weight, scale);
  const Plan plan = plan_blockwise(p);
  if (p.group_size < p.K) return linear(p, plan, input, blocks, nullptr, bias);
  return linear(p, plan, input, RowwiseWeight(p, weight, blocks.row_scales()), nullptr, bias);
}

}  // namespace aoext::cpu
