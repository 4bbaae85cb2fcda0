// Weight-only float8: the scale of a row multiplies the sums of its values.
#include "cpu/linear.h"

namespace aoext::cpu {
namespace {

Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale) {
  const LinearProblem p = check_bf16f8bf16_rowwise(input, weight, scale);
  return linear(p, plan_rowwise(p), input, RowwiseWeight(p, weight, floats(scale)), nullptr, std::nullopt);
}

Tensor bf16f8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias) {
  const LinearProblem p = check_bf16f8bf16_rowwise_bias(input, weight, scale, bias);
  return linear(p, plan_rowwise(p), input, RowwiseWeight(p, weight, floats(scale)), nullptr, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CPU, m) {
  m.impl("bf16f8bf16_rowwise", TORCH_BOX(&bf16f8bf16_rowwise));
  m.impl("bf16f8bf16_rowwise_bias", TORCH_BOX(&bf16f8bf16_rowwise_bias));
}

}  // namespace aoext::cpu
