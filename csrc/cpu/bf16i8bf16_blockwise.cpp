// Weight-only int8 with a scale a block.
#include "cpu/linear_8bit_blockwise.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor bf16i8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i8bf16_blockwise(input, weight, scale, block_size, bias);
  return linear_8bit_blockwise(p, input, weight, scale, bias);
}

}  // namespace

AOEXT_REGISTER(CPU, bf16i8bf16_blockwise, &explain<plan_blockwise>, &bf16i8bf16_blockwise)

}  // namespace aoext::cpu
