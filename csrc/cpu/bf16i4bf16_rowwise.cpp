// Weight-only int4: few input rows meet the nibbles themselves; for more, nibbles become rows in cache that are then multiplied.
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return linear(p, plan_int4(p), input, Int4Weight(p, weight, scale, zero_point), nullptr, std::nullopt);
}

Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  return linear(p, plan_int4(p), input, Int4Weight(p, weight, scale, zero_point), nullptr, bias);
}

}  // namespace

AOEXT_REGISTER(CPU, bf16i4bf16_rowwise, &explain<plan_int4>, &bf16i4bf16_rowwise)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise_bias, &explain<plan_int4>, &bf16i4bf16_rowwise_bias)

}  // namespace aoext::cpu
