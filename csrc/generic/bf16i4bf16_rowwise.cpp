// Weight-only int4 on any device: dequantise a block of rows, multiply, next block.
#include "generic/blocks.h"
#include "generic/dequantize_int4.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return linear_by_blocks(
      p, input, [&](int64_t first, int64_t count) { return dequantize_int4_rows(p, weight, scale, zero_point, first, count); });
}

// Through the dispatcher, so that a device with a kernel for the first operator alone gets it here too: of float32, whose result
// is not rounded before the bias is added.
Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  const Tensor product = call("ao::bf16i4bf16_rowwise", "", aten::to(input, ScalarType::Float), weight, scale, zero_point);
  return aten::to(aten::add(product, aten::to(bias, ScalarType::Float)), p.output);
}

}  // namespace aoext::generic
