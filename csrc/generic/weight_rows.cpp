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

// Digits to base 3 of `count` bytes of each block from `first` on: all first ones, then all second ones.
void add_digits(const Tensor& blocks, int64_t first, int64_t count, int64_t of_each, std::vector<Tensor>& runs) {
  const Tensor bytes = aten::narrow(blocks, blocks.dim() - 1, first, count);
  for (int digit = 0; digit < of_each; ++digit) {
    const Tensor rest = aten::mul(bytes, constant(Digits::power(digit), ScalarType::Byte, blocks));  // modulo 256
    const Tensor threefold = aten::mul(aten::to(rest, ScalarType::Int), constant(3, ScalarType::Int, blocks));
    runs.push_back(
        aten::to(call("aten::bitwise_right_shift", "Tensor", threefold, constant(8, ScalarType::Int, blocks)), ScalarType::Byte));
  }
}

// Bits of n integers of each block, the last dimension of `blocks`, as uint8 [..., n].
Tensor bits_of(const Tensor& blocks, const Bits& bits, int64_t n) {
  const int64_t last = blocks.dim() - 1;
  std::vector<Tensor> runs;
  if (bits.are_digits) {
    add_digits(blocks, bits.at, Digits::kFirst, Digits::kOfEach, runs);
    add_digits(blocks, bits.at + Digits::kFirst, Digits::kSecond, Digits::kOfEach, runs);
    add_digits(blocks, bits.at + Digits::kFirst + Digits::kSecond, Digits::kLast, Digits::kOfEach - 1, runs);
    return call("aten::cat", "", runs, last);
  }
  for (int i = 0; i < n; i += bits.run) {
    Tensor run = aten::narrow(blocks, last, bits.byte_of(i), std::min<int64_t>(bits.run, n - i));
    if (const int by = bits.shift_of(i); by > 0)
      run = call("aten::bitwise_right_shift", "Tensor", run, constant(by, ScalarType::Byte, blocks));
    if (bits.bits < 8) run = call("aten::bitwise_and", "Tensor", run, constant((1 << bits.bits) - 1, ScalarType::Byte, blocks));
    runs.push_back(run);
  }
  return call("aten::cat", "", runs, last);
}

// n integers of each block as float32 [..., n].
Tensor integers_of(const Tensor& blocks, const Integer& integer, int64_t n) {
  Tensor stored = bits_of(blocks, integer.planes[0], n);
  int low = integer.planes[0].bits;
  for (const Bits& plane : {integer.planes[1], integer.planes[2]}) {
    if (plane.bits == 0) continue;
    const Tensor above =
        call("aten::bitwise_left_shift", "Tensor", bits_of(blocks, plane, n), constant(low, ScalarType::Byte, blocks));
    stored = call("aten::bitwise_or", "Tensor", stored, above);
    low += plane.bits;
  }
  if (integer.middle == 0) return aten::to(stored, ScalarType::Float);
  const Tensor middle = constant(integer.middle, ScalarType::Byte, blocks);
  if (integer.is_signed) stored = call("aten::bitwise_xor", "Tensor", stored, middle);
  return aten::subtract(aten::to(stored, ScalarType::Float), aten::to(middle, ScalarType::Float));
}

// A number for each group of each block, float32 [..., groups, 1].
Tensor numbers_of(const Tensor& blocks, const GroupNumber& number, int64_t groups) {
  const int64_t last = blocks.dim() - 1;
  Tensor of_blocks =
      aten::to(aten::view_as(aten::contiguous(aten::narrow(blocks, last, number.at, 2)), ScalarType::Half), ScalarType::Float);
  if (number.has_factor()) of_blocks = aten::mul(of_blocks, integers_of(blocks, number.factor, groups));
  if (number.is_taken_off) of_blocks = aten::mul(of_blocks, constant(-1, ScalarType::Float, blocks));
  return aten::unsqueeze(of_blocks, last + 1);
}

Tensor looked_up(const Tensor& codes, const Tensor& table) {
  const Tensor flat = aten::to(aten::reshape(codes, {codes.numel()}), ScalarType::Int);
  return call("aten::index_select", "", table, int64_t{0}, flat);
}

// kIq4 in float32 on the device of `like`.
Tensor iq4_table(const Tensor& like) {
  std::vector<Tensor> values;
  for (const int value : kIq4) values.push_back(constant(value, ScalarType::Float, like));
  return aten::reshape(call("aten::stack", "", values, int64_t{0}), {16});
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

// Rows of blocks that hold their scales.
Tensor rows_by_own_scales(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  const Layout& of = layout(p.code);
  const int64_t blocks = p.K / of.values, groups = of.values / of.group;
  const Tensor bytes = aten::narrow(w.values, 0, first, count);
  const Tensor codes = aten::reshape(codes_of(p, w, first, count), {count, blocks, groups, of.group});
  Tensor rows = aten::mul(codes, numbers_of(bytes, of.scale, groups));
  if (of.zero_point.at >= 0) rows = aten::add(rows, numbers_of(bytes, of.zero_point, groups));
  return aten::mul(aten::reshape(rows, {count, p.K}), aten::reshape(w.scale, {1, 1}));
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
  const Layout& of = layout(p.code);
  Tensor codes = aten::narrow(w.values, 0, first, count);
  if (of.values > 1) {
    if (dtype_of(codes) != ScalarType::Byte) codes = aten::view_as(codes, ScalarType::Byte);
    codes = integers_of(of.bytes > 1 ? codes : aten::unsqueeze(codes, 2), of.code, of.values);
  }
  if (format_of(p.code).has_table) codes = looked_up(codes, *w.table);
  if (of.looks_up) codes = looked_up(codes, iq4_table(codes));
  return aten::reshape(aten::to(codes, ScalarType::Float), {count, p.K});
}

Tensor dequantized_rows(const LinearProblem& p, const Weight& w, int64_t first, int64_t count) {
  if (is_by_groups(p.code)) return rows_by_groups(p, w, first, count);
  return has_scales_inside(p.code) ? rows_by_own_scales(p, w, first, count) : rows_by_blocks(p, w, first, count);
}

Tensor dequantized(const LinearProblem& p, const Weight& w) {
  Tensor out = aten::empty({p.N, p.K}, p.output, w.values);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(out, 0, first, count), dequantized_rows(p, w, first, count));
  });
  return out;
}

}  // namespace aoext::generic
