// Weight-only codes of 4 bits through a table, with a scale a block, on an XPU.
#include "generic/register.h"
#include "sycl/blocks_product.h"

namespace aoext::xpu {
namespace {

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  const OptionalTensor y = blocks_product(p, input, weight, scale, bias, {}, table, global_scale);
  return y ? *y : generic::bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
}

}  // namespace

AOEXT_REGISTER(XPU, bf16lut4bf16_blockwise, &explain<plan_blocks>, &bf16lut4bf16_blockwise)

}  // namespace aoext::xpu
