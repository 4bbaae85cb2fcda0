#include "generic/weight_rows.h"

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

Tensor constant(int64_t value, ScalarType dtype, const Tensor& like) {
  return aten::scalar_like(static_cast<double>(value), dtype, like);
}

// The codes of each byte, [count, codes · bytes], the lowest k from the lowest bits. A signed code is moved to the byte's top
// first, so that its own sign bit leads when it is shifted down.
Tensor unpacked(const Tensor& packed, const Format& format) {
  const int bits = 8 / format.codes_a_byte;
  const auto shifted = [&](const char* op, const Tensor& t, int by) {
    return by == 0 ? t : call(op, "Tensor", t, constant(by, format.storage, packed));
  };
  std::vector<Tensor> codes;
  for (int low = 0; low < 8; low += bits) {
    const Tensor at_top = shifted("aten::bitwise_left_shift", packed, 8 - bits - low);
    codes.push_back(shifted("aten::bitwise_right_shift", at_top, 8 - bits));
  }
  return call("aten::stack", "", codes, int64_t{-1});
}

Tensor looked_up(const Tensor& codes, const Tensor& table) {
  const Tensor flat = aten::to(aten::reshape(codes, {codes.numel()}), ScalarType::Int);
  return call("aten::index_select", "", table, int64_t{0}, flat);
}

// Columns [first, first + count) of t [K/group_size, N] as float32 [count, K/group_size, 1].
Tensor of_groups(const Tensor& t, int64_t first, int64_t count) {
  return aten::unsqueeze(aten::to(aten::transpose(aten::narrow(t, 1, first, count)), ScalarType::Float), 2);
}

Tensor rows_by_groups(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  const Tensor q = aten::reshape(codes_of(p, w, first, count), {count, p.K / p.group_size, p.group_size});
  const Tensor rows = aten::add(aten::mul(q, of_groups(w.scale, first, count)), of_groups(*w.zero_point, first, count));
  return aten::reshape(rows, {count, p.K});
}

Tensor rows_by_blocks(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  const int64_t begin = first / p.block_n, blocks = ceil_div(first + count, p.block_n) - begin;
  // One for each row and, where blocks are shorter than it, each column.
  const auto of_elements = [&](Tensor of_blocks) {
    if (p.block_n > 1 && blocks > 1)
      of_blocks = aten::narrow(aten::repeat_interleave(of_blocks, p.block_n, 0), 0, first - begin * p.block_n, count);
    return p.group_size == p.K ? of_blocks : spread(of_blocks, p.group_size, p.K);
  };
  const auto of_rows = [&](const Tensor& of_blocks) { return aten::narrow(of_blocks, 0, begin, blocks); };
  Tensor codes = codes_of(p, w, first, count);
  if (w.zero_point) codes = aten::subtract(codes, of_elements(aten::to(of_rows(*w.zero_point), ScalarType::Float)));
  const Tensor rows = aten::mul(codes, of_elements(scales_in_float32(p, of_rows(w.scale))));
  return w.global_scale ? aten::mul(rows, aten::reshape(*w.global_scale, {1, 1})) : rows;
}

}  // namespace

Tensor spread(const Tensor& scales, int64_t block, int64_t length) {
  const Tensor columns = block == 1 ? scales : aten::repeat_interleave(scales, block, 1);
  return columns.size(1) == length ? columns : aten::narrow(columns, 1, 0, length);
}

Tensor codes_of(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  const Format& format = format_of(p.code);
  Tensor codes = aten::narrow(w.values, 0, first, count);
  if (format.codes_a_byte > 1) codes = unpacked(codes, format);
  if (format.has_table) codes = looked_up(codes, *w.table);
  return aten::reshape(aten::to(codes, ScalarType::Float), {count, p.K});
}

Tensor dequantized_rows(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  return is_by_groups(p.code) ? rows_by_groups(p, w, first, count) : rows_by_blocks(p, w, first, count);
}

Tensor dequantized(const LinearProblem& p, const Weight& w) {
  Tensor out = aten::empty({p.N, p.K}, p.output, w.values);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(out, 0, first, count), dequantized_rows(p, w, first, count));
  });
  return out;
}

}  // namespace aoext::generic
