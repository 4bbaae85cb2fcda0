// Weight-only float8 with a scale a block on any device.
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor bf16f8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            const OptionalTensor& bias) {
  const LinearProblem p = check_bf16f8bf16_blockwise(input, weight, scale, block_size, bias);
  return linear_by_blocks(
      p, input, [&](int64_t first, int64_t count) { return dequantize_rows(p, {weight, scale}, first, count); }, bias);
}

}  // namespace aoext::generic
