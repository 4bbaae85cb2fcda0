// Dynamic quantisation on any device, by rows or by blocks of k, of which the last may be partial.
#include "common/sizes.h"
#include "generic/generic.h"
#include "generic/quantize_values.h"
#include "generic/row_blocks.h"

namespace aoext::generic {

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size,
                                    bool power_of_two) {
  const LinearProblem p = check_quantize(input, dtype, block_size, power_of_two);
  const int64_t block = p.input_group_size, blocks = ceil_div(p.K, block);
  Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  Tensor scales = aten::empty(output_sizes(input, blocks), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::reshape(input, {p.M, p.K});
  const Tensor values2d = aten::reshape(values, {p.M, p.K});
  const Tensor scales2d = aten::reshape(scales, {p.M, blocks});
  // Quantises blocks [begin, begin + number), each of `length` columns, of rows [first, first + count).
  const auto quantize_blocks = [&](int64_t first, int64_t count, int64_t begin, int64_t number, int64_t length) {
    const auto part = [&](const Tensor& t, int64_t column, int64_t columns) {
      return aten::narrow(aten::narrow(t, 0, first, count), 1, column, columns);
    };
    const Tensor columns = aten::to(part(x, begin * block, number * length), ScalarType::Float);
    const auto [q, scale] = quantize_values(aten::reshape(columns, {count, number, length}), dtype, power_of_two);
    aten::copy_(part(values2d, begin * block, number * length), aten::reshape(q, {count, number * length}));
    aten::copy_(part(scales2d, begin, number), aten::reshape(scale, {count, number}));
  };
  const int64_t whole = p.K / block;
  for_row_blocks(p.M, p.K, [&](int64_t first, int64_t count) {
    if (whole > 0) quantize_blocks(first, count, 0, whole, block);
    if (whole < blocks) quantize_blocks(first, count, whole, 1, p.K - whole * block);
  });
  return {values, scales};
}

}  // namespace aoext::generic
