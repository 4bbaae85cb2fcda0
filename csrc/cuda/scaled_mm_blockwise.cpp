// 8-bit × 8-bit with a scale a block on both sides, on CUDA.
#include "cuda/scaled.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
  if (const OptionalTensor y = scaled(p, {input, weight, weight_scale, &input_scale, nullptr, bias})) return *y;
  return generic::scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
}

Explanation explain_product(const Call& call) { return explain_scaled(call, 1, 3); }

}  // namespace

AOEXT_REGISTER(CUDA, scaled_mm_blockwise, &explain_product, &scaled_mm_blockwise)

}  // namespace aoext::cuda
