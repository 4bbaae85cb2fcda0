// Weight-only int8 with a scale a block on CUDA.
#include "cuda/blocks.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor product(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
               const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i8bf16_blockwise(input, weight, scale, block_size, bias);
  const OptionalTensor y = blocks(p, input, {weight, scale}, bias);
  return y ? *y : generic::bf16i8bf16_blockwise(input, weight, scale, block_size, bias);
}

}  // namespace

AOEXT_REGISTER(CUDA, bf16i8bf16_blockwise, &explain_blocks, &product)

}  // namespace aoext::cuda
