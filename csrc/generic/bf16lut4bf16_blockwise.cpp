// Weight-only codes of 4 bits through a table, with a scale a block, on any device.
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  const BlockwiseWeight w{weight, scale, table, global_scale};
  return linear_by_blocks(p, input, [&](int64_t first, int64_t count) { return dequantize_rows(p, w, first, count); }, bias);
}

}  // namespace aoext::generic
