// Rows of int4 to the tinygemm layout, eight rows at a time.
#include "cpu/explain.h"
#include "cpu/int4pack.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles) {
  const LinearProblem p = check_convert_weight_to_int4pack(weight, inner_k_tiles);
  const Tensor packed = aten::empty(int4pack_sizes(p), ScalarType::Int, weight);
  const Int4PackShape shape(p.K, inner_k_tiles);
  const uint8_t* const in = static_cast<const uint8_t*>(weight.const_data_ptr());
  uint32_t* const out = static_cast<uint32_t*>(packed.mutable_data_ptr());
  kParallelFor(p.N / 8, grain(8, p.K), [&](int64_t begin, int64_t end) {
    for (int64_t row = 8 * begin; row < 8 * end; ++row) {
      for (int64_t block = 0; block < p.K / 32; ++block) {
        const uint8_t* const bytes = in + row * (p.K / 2) + block * 16;
        for (int64_t t = 0; t < 4; ++t) {
          uint32_t four = 0;
          for (int64_t i = 0; i < 4; ++i) four |= static_cast<uint32_t>(bytes[4 * i + t]) << (8 * i);
          // The even k sits in the high nibble of a byte and goes to the low half of the word.
          out[shape.word(row, block, t)] = gather_nibbles(four >> 4 & 0x0f0f0f0f) | gather_nibbles(four & 0x0f0f0f0f) << 16;
        }
      }
    }
  });
  return packed;
}

}  // namespace

AOEXT_REGISTER(CPU, convert_weight_to_int4pack, &explain, &convert_weight_to_int4pack)

}  // namespace aoext::cpu
