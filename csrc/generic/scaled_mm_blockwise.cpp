// 8-bit input × 8-bit weight, both with a scale a block, on any device: products of what the codes stand for, in float32.
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
  if (p.M == 0 || p.N == 0) return aten::empty(output_sizes(input, p.N), p.output, input);
  const Tensor scales =
      spread(aten::reshape(input_scale, {p.M, input_scale.size(input_scale.dim() - 1)}), p.input_group_size, p.K);
  const Tensor x = aten::mul(aten::to(input, ScalarType::Float), aten::reshape(scales, output_sizes(input, p.K)));
  return linear_by_blocks(
      p, x, [&](int64_t first, int64_t count) { return dequantize_rows(p, {weight, weight_scale}, first, count); }, bias);
}

}  // namespace aoext::generic
