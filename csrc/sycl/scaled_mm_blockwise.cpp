// 8-bit input by 8-bit weight, both with a scale a block, on an XPU.
#include "generic/register.h"
#include "sycl/blocks_product.h"

namespace aoext::xpu {
namespace {

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
  const OptionalTensor y = blocks_product(p, input, weight, weight_scale, bias, input_scale);
  return y ? *y
           : generic::scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_mm_blockwise, &explain<plan_blocks>, &scaled_mm_blockwise)

}  // namespace aoext::xpu
