// Weight-only codes of 4 bits through a table, with a scale a block, on CUDA.
#include "cuda/blocks.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor product(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
               const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  const OptionalTensor y = blocks(p, input, {weight, scale, table, global_scale}, bias);
  return y ? *y : generic::bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
}

}  // namespace

AOEXT_REGISTER(CUDA, bf16lut4bf16_blockwise, &explain_blocks, &product)

}  // namespace aoext::cuda
