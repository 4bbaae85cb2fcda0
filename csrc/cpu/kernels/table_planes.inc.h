// Codes of 4 bits by NEON's look-ups of bytes: byte i of all sixteen values of a table is a register, and a look-up serves 16
// codes.
#pragma once

#include "cpu/kernels/vectors_neon.inc.h"

namespace aoext::cpu {
namespace {

// The upper kPlanes bytes of floats: two of a table whose values are bfloat16, or all four.
template <int kPlanes>
struct TablePlanes {
  uint8x16_t planes[kPlanes];

  explicit TablePlanes(const float* from) {
    for (int p = 0; p < kPlanes; ++p) {
      uint8_t bytes[16];
      for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(bits(from[i]) >> (8 * (p + 4 - kPlanes)));
      planes[p] = load<uint8x16_t>(bytes);
    }
  }

  static bool serves(const float* from) {
    uint32_t below = 0;
    for (int i = 0; i < 16; ++i) below |= bits(from[i]) & (0xffffffffu >> (8 * (kPlanes - 1)) >> 8);
    return below == 0;
  }

  // 16 codes, one a byte, as the upper halves of values in their order.
  void halves(uint8x16_t codes, uint16x8_t (&out)[2]) const { pair_of(kPlanes - 2, codes, out); }

  // The same as floats.
  void floats(uint8x16_t codes, F32 (&out)[4]) const {
    uint16x8_t high[2];
    halves(codes, high);
    if constexpr (kPlanes == 2) {
      for (int i = 0; i < 2; ++i) {
        out[2 * i] = (F32)vshll_n_u16(vget_low_u16(high[i]), 16);
        out[2 * i + 1] = (F32)vshll_high_n_u16(high[i], 16);
      }
    } else {
      uint16x8_t low[2];
      pair_of(0, codes, low);
      for (int i = 0; i < 2; ++i) {
        out[2 * i] = (F32)vzip1q_u16(low[i], high[i]);
        out[2 * i + 1] = (F32)vzip2q_u16(low[i], high[i]);
      }
    }
  }

 private:
  void pair_of(int plane, uint8x16_t codes, uint16x8_t (&out)[2]) const {
    const uint8x16_t low = vqtbl1q_u8(planes[plane], codes), high = vqtbl1q_u8(planes[plane + 1], codes);
    out[0] = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    out[1] = vreinterpretq_u16_u8(vzip2q_u8(low, high));
  }
};

}  // namespace
}  // namespace aoext::cpu
