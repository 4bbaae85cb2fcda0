// Weight-only int4: few input rows meet the nibbles themselves; for more, nibbles become rows in cache that are then multiplied.
#include "cpu/linear.h"

namespace aoext::cpu {
namespace {

Tensor int4_linear(const LinearProblem& p, const Tensor& input, const Int4Weight& weight, const OptionalTensor& bias) {
  return linear(p, plan_int4(p), input, weight, nullptr, bias);
}

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return int4_linear(p, input, Int4Weight(p, weight, scale, zero_point), std::nullopt);
}

Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  return int4_linear(p, input, Int4Weight(p, weight, scale, zero_point), bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CPU, m) {
  m.impl("bf16i4bf16_rowwise", TORCH_BOX(&bf16i4bf16_rowwise));
  m.impl("bf16i4bf16_rowwise_bias", TORCH_BOX(&bf16i4bf16_rowwise_bias));
}

}  // namespace aoext::cpu
