#include "generic/blockwise.h"

#include "common/describe.h"
#include "common/sizes.h"

namespace aoext::generic {
namespace {

// 2^(u − 127) of exponents u, by the bits of float32: 0 is 2^−127, a subnormal number, and 255 is NaN.
Tensor powers_of_two(const Tensor& exponents) {
  const auto constant = [&](int64_t value) { return aten::scalar_like(static_cast<double>(value), ScalarType::Int, exponents); };
  const Tensor u = aten::to(exponents, ScalarType::Int);
  const auto is = [&](int64_t value) { return call("aten::eq", "Tensor", u, constant(value)); };
  Tensor bits = call("aten::bitwise_left_shift", "Tensor", u, constant(23));
  bits = aten::where(is(0), constant(0x00400000), bits);
  return aten::view_as(aten::where(is(255), constant(0x7fc00000), bits), ScalarType::Float);
}

Tensor scales_in_float32(const LinearProblem& p, const Tensor& scales) {
  if (p.scale != ScalarType::Float8_e8m0fnu) return aten::to(scales, ScalarType::Float);
  return powers_of_two(dtype_of(scales) == ScalarType::Byte ? scales : aten::view_as(scales, ScalarType::Byte));
}

// What codes of 4 bits look up, the even k in the low nibble: float32 [count, K].
Tensor looked_up(const Tensor& packed, const Tensor& table) {
  const auto constant = [&](int64_t value) { return aten::scalar_like(static_cast<double>(value), ScalarType::Byte, packed); };
  const Tensor low = call("aten::bitwise_and", "Tensor", packed, constant(0x0f));
  const Tensor high = call("aten::bitwise_right_shift", "Tensor", packed, constant(4));
  const int64_t count = packed.size(0), K = 2 * packed.size(1);
  const Tensor codes = aten::to(aten::reshape(aten::stack_last(low, high), {count * K}), ScalarType::Int);
  return aten::reshape(call("aten::index_select", "", table, int64_t{0}, codes), {count, K});
}

}  // namespace

Tensor spread(const Tensor& scales, int64_t block, int64_t length) {
  const Tensor columns = block == 1 ? scales : aten::repeat_interleave(scales, block, 1);
  return columns.size(1) == length ? columns : aten::narrow(columns, 1, 0, length);
}

Tensor dequantize_rows(const LinearProblem& p, const BlockwiseWeight& w, int64_t first, int64_t count) {
  const Tensor packed = aten::narrow(w.weight, 0, first, count);
  const Tensor values = w.table ? looked_up(packed, *w.table) : aten::to(packed, ScalarType::Float);
  const int64_t begin = first / p.block_n, blocks = ceil_div(first + count, p.block_n) - begin;
  // For each row and, where blocks are shorter than it, each column.
  const auto of_elements = [&](Tensor of_blocks) {
    if (p.block_n > 1 && blocks > 1)
      of_blocks = aten::narrow(aten::repeat_interleave(of_blocks, p.block_n, 0), 0, first - begin * p.block_n, count);
    return p.group_size == p.K ? of_blocks : spread(of_blocks, p.group_size, p.K);
  };
  const auto of_rows = [&](const Tensor& of_blocks) { return aten::narrow(of_blocks, 0, begin, blocks); };
  const Tensor codes =
      w.zero_point ? aten::subtract(values, of_elements(aten::to(of_rows(*w.zero_point), ScalarType::Float))) : values;
  const Tensor rows = aten::mul(codes, of_elements(scales_in_float32(p, of_rows(w.scale))));
  return w.global_scale ? aten::mul(rows, aten::reshape(*w.global_scale, {1, 1})) : rows;
}

Tensor dequantize(const LinearProblem& p, const BlockwiseWeight& w) {
  Tensor out = aten::empty({p.N, p.K}, p.output, w.weight);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(out, 0, first, count), dequantize_rows(p, w, first, count));
  });
  return out;
}

}  // namespace aoext::generic
