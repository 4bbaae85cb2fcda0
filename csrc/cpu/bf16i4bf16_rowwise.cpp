// Weight-only int4: nibbles become float32 rows in cache, then Algorithm::dot or ::panel multiplies.
#include "cpu/linear.h"

namespace aoext::cpu {
namespace {

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return linear(p, plan_weight_only(p), input, Int4Weight(p, weight, scale, zero_point), nullptr, std::nullopt);
}

Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  return linear(p, plan_weight_only(p), input, Int4Weight(p, weight, scale, zero_point), nullptr, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CPU, m) {
  m.impl("bf16i4bf16_rowwise", TORCH_BOX(&bf16i4bf16_rowwise));
  m.impl("bf16i4bf16_rowwise_bias", TORCH_BOX(&bf16i4bf16_rowwise_bias));
}

}  // namespace aoext::cpu
