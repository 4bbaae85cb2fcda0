// Codes of 4 bits by few rows of x, for tables whose values are bfloat16: their two bytes are looked up for 32 codes at once, and
// 16-bit words become floats by a shift or a mask. 64 codes take 12 instructions and 8, where look-ups of floats take 40.
#pragma once

#include "cpu/kernels/gemv_blockwise.inc.h"

namespace aoext::cpu {
namespace {

// A loader (gemv_blockwise.inc.h) in the order of Lut4AsFloats.
struct Lut4AsShortFloats {
  using Operand = float;
  using Vector = F32;
  static constexpr int kVectors = 8, kUnit = kVectors * kFloats, kBytes = sizeof(U32);
  struct Unit {
    U32 words[2][2];  // of the low nibbles and the high ones: two bytes of each word of the weight, then the other two
  };
  __m256i low, high;  // bytes of the table

  explicit Lut4AsShortFloats(const float* table) {
    uint8_t bytes[2][16];
    for (int i = 0; i < 16; ++i) {
      bytes[0][i] = static_cast<uint8_t>(bits(table[i]) >> 16);
      bytes[1][i] = static_cast<uint8_t>(bits(table[i]) >> 24);
    }
    low = _mm256_broadcastsi128_si256(load<__m128i>(bytes[0]));
    high = _mm256_broadcastsi128_si256(load<__m128i>(bytes[1]));
  }

  static bool serves(const float* table) {
    uint32_t below = 0;
    for (int i = 0; i < 16; ++i) below |= bits(table[i]) & 0xffffu;
    return below == 0;
  }

  Unit unit(const char* from) const {
    const __m256i halves = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i bytes = _mm256_shuffle_epi8(load<__m256i>(from), halves), nibble = _mm256_set1_epi8(15);
    const __m256i codes[] = {_mm256_and_si256(bytes, nibble), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)};
    Unit unit;
    for (int i = 0; i < 2; ++i) {
      const __m256i lows = _mm256_shuffle_epi8(low, codes[i]), highs = _mm256_shuffle_epi8(high, codes[i]);
      unit.words[i][0] = (U32)_mm256_unpacklo_epi8(lows, highs);
      unit.words[i][1] = (U32)_mm256_unpackhi_epi8(lows, highs);
    }
    return unit;
  }
  Vector vector(const Unit& unit, int i) const {
    const U32 words = unit.words[i % 2][i / 4];
    return (F32)(i / 2 % 2 == 0 ? words << 16 : words & 0xffff0000u);
  }
  static F32 multiply_add(F32 sums, Vector w, const Operand* x) { return sums + load<F32>(x) * w; }
};

void dot_lut4_avx2(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                   float (*acc)[kPanel]) {
  if (Lut4AsShortFloats::serves(w.table)) return dot_units(Lut4AsShortFloats(w.table), x, x_stride, M, w, N, K, acc);
  dot_lut4(x, x_stride, M, w, N, K, acc);
}

constexpr GemvBlockwise kGemvLut4Avx2{.operand_bytes = sizeof(float), .pack_x = pack_x_lut4, .dot = dot_lut4_avx2};

}  // namespace
}  // namespace aoext::cpu
