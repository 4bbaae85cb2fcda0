// Weight-only float8: the scale of a row multiplies the sums of its values.
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16f8bf16_rowwise(input, weight, scale, bias);
  return linear(p, plan_rowwise(p), input, RowwiseWeight(p, weight, floats(scale)), nullptr, bias);
}

}  // namespace

AOEXT_REGISTER(CPU, bf16f8bf16_rowwise, &explain<plan_rowwise>, &bf16f8bf16_rowwise)

}  // namespace aoext::cpu
