// Weight-only 8 bits with a scale a block; one scale a row is the row-wise product.
#pragma once

#include "cpu/linear.h"

namespace aoext::cpu {

inline Tensor linear_8bit_blockwise(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                                    const OptionalTensor& bias, const SubtractedZeroPoints* zero_points = nullptr) {
  const BlockwiseWeight blocks(p, weight, scale);
  const Plan plan = plan_blockwise(p);
  if (p.group_size < p.K) return linear(p, plan, input, blocks, nullptr, bias, zero_points);
  return linear(p, plan, input, RowwiseWeight(p, weight, blocks.row_scales()), nullptr, bias, zero_points);
}

// bf16i8bf16_blockwise and bf16f8bf16_blockwise, by the operator's check.
template <auto kCheck>
Tensor linear_8bit_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                             const OptionalTensor& bias) {
  return linear_8bit_blockwise(kCheck(input, weight, scale, block_size, bias), input, weight, scale, bias);
}

}  // namespace aoext::cpu
