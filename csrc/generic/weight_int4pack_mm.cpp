// Weight-only int4 from the tinygemm layout on any device: unpack a block of rows, multiply, next block.
#include "generic/generic.h"
#include "generic/int4pack.h"

namespace aoext::generic {
namespace {

using namespace int4pack;

// int32 [tiles, K/(16 · inner), 32, inner/2] to u − 8 as float32 [8 · tiles, K].
Tensor unpack(const LinearProblem& p, const Tensor& packed) {
  const int64_t tiles = packed.size(0), blocks = p.inner_k_tiles / 2, outer = p.K / (32 * blocks);
  // A last dimension of one element may have any stride, which a view of other elements would refuse.
  const Tensor words = aten::reshape(packed, {packed.numel()});
  const Tensor bytes = aten::reshape(aten::view_as(words, ScalarType::Byte), {tiles, outer, 8, 4, blocks, 2, 2});
  // [tile, outer, g, t, block, h, b, parity of p] to [tile, g, outer, block, b, parity, t, h].
  const Tensor nibbles = permute(aten::stack_last(low_nibble(bytes), high_nibble(bytes)), {0, 2, 1, 4, 6, 7, 3, 5});
  const Tensor u = aten::to(aten::reshape(nibbles, {8 * tiles, p.K}), ScalarType::Float);
  return aten::add(u, aten::scalar_like(-8, ScalarType::Float, u));
}

// Part 0 (scale) or 1 (zero) of rows [first, first + count), float32 [count, K/group_size, 1].
Tensor group_column(const Tensor& scale_and_zero, int64_t part, int64_t first, int64_t count) {
  const Tensor column = aten::narrow(aten::narrow(scale_and_zero, 2, part, 1), 1, first, count);
  return aten::to(permute(column, {1, 0, 2}), ScalarType::Float);
}

// Rows [first, first + count) of w in float32: those of the n-tiles that hold them.
Tensor rows_of(const LinearProblem& p, const Tensor& weight, const Tensor& scale_and_zero, int64_t first, int64_t count) {
  const int64_t first_tile = first / 8, tiles = (first + count + 7) / 8 - first_tile;
  const Tensor q = aten::narrow(unpack(p, aten::narrow(weight, 0, first_tile, tiles)), 0, first - 8 * first_tile, count);
  const Tensor grouped = aten::reshape(q, {count, p.K / p.group_size, p.group_size});
  const Tensor scaled = aten::mul(grouped, group_column(scale_and_zero, 0, first, count));
  return aten::reshape(aten::add(scaled, group_column(scale_and_zero, 1, first, count)), {count, p.K});
}

}  // namespace

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const LinearProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  return linear_by_blocks(p, input,
                          [&](int64_t first, int64_t count) { return rows_of(p, weight, scale_and_zero, first, count); });
}

}  // namespace aoext::generic
