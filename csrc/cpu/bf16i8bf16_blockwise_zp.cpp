// Weight-only int8 with a scale and an integer zero point a block.
#include "cpu/linear_8bit_blockwise.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor bf16i8bf16_blockwise_zp(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Integers& block_size, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i8bf16_blockwise_zp(input, weight, scale, zero_point, block_size, bias);
  const Tensor x = aten::contiguous(input);
  const SubtractedZeroPoints zero_points(p, input_rows(p, x), scale, zero_point);
  return linear_8bit_blockwise(p, x, weight, scale, bias, &zero_points);
}

}  // namespace

AOEXT_REGISTER(CPU, bf16i8bf16_blockwise_zp, &explain<plan_blockwise>, &bf16i8bf16_blockwise_zp)

}  // namespace aoext::cpu
