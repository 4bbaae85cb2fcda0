// Rows of int4 to the tinygemm layout on any device.
#include "generic/generic.h"
#include "generic/int4pack.h"

namespace aoext::generic {
namespace {

using namespace int4pack;

// uint8 [8 · tiles, K/2] to int32 [tiles, K/(16 · inner), 32, inner/2].
Tensor pack(const LinearProblem& p, const Tensor& rows) {
  const int64_t tiles = rows.size(0) / 8, blocks = p.inner_k_tiles / 2, outer = p.K / (32 * blocks);
  // [tile, g, outer, block, b, parity of p, t] to [tile, outer, g, t, block, b, parity].
  const Tensor bytes = permute(aten::reshape(rows, {tiles, 8, outer, blocks, 2, 2, 4}), {0, 2, 1, 6, 3, 4, 5});
  const auto of_parity = [&](int64_t parity) {
    return aten::reshape(aten::narrow(bytes, 6, parity, 1), {tiles, outer, 32, blocks, 2});
  };
  const Tensor first = of_parity(0), second = of_parity(1);
  const auto pair = [&](const Tensor& a, const Tensor& b) { return call("aten::bitwise_or", "Tensor", a, to_high_nibble(b)); };
  const std::vector<Tensor> by_h = {pair(high_nibble(first), high_nibble(second)), pair(low_nibble(first), low_nibble(second))};
  const Tensor packed = call("aten::stack", "", by_h, int64_t{4});  // [tile, outer, lane, block, h, b]
  return aten::view_as(aten::reshape(packed, {tiles, outer, 32, blocks * 4}), ScalarType::Int);
}

}  // namespace

Tensor convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles) {
  const LinearProblem p = check_convert_weight_to_int4pack(weight, inner_k_tiles);
  const Tensor packed = aten::empty(int4pack_sizes(p), ScalarType::Int, weight);
  for_row_blocks(p.N / 8, 8 * p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(packed, 0, first, count), pack(p, aten::narrow(weight, 0, 8 * first, 8 * count)));
  });
  return packed;
}

}  // namespace aoext::generic
