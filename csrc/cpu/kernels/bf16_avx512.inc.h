// Weights as bfloat16 by look-ups: 8-bit values in tables of 128 bytes, int4 in its group's sixteen values.
#pragma once

#include "cpu/kernels/int4.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

// How a float8 becomes a bfloat16 by its bits: its magnitude moves up to bfloat16's exponent, whose bias is larger by kBias, but
// for subnormal magnitudes m, which are m · 2^kLowest, and those from kSpecial on, infinite or NaN.
template <Element kType>
struct Float8Bits {
  static constexpr bool kE5m2 = kType == Element::e5m2;
  static constexpr int kShift = kE5m2 ? 5 : 4, kBias = kE5m2 ? 112 : 120, kLowest = kE5m2 ? -16 : -9;
  static constexpr int kSubnormals = kE5m2 ? 4 : 8, kSpecial = kE5m2 ? 0x7c : 0x7f;
};

// Magnitudes of 8-bit values as bfloat16, which all of them are exactly: an int8's is a number of units as a float8's subnormals
// are.
template <Element kType>
constexpr uint16_t magnitude_as_bf16(int m) {
  int log2 = 0;
  while (m >> (log2 + 1) != 0) ++log2;
  const auto units = [&](int lowest) { return m == 0 ? 0 : (127 + lowest + log2) << 7 | (m << (7 - log2) & 0x7f); };
  if constexpr (kType == Element::int8) {
    return static_cast<uint16_t>(units(0));
  } else {
    using Bits = Float8Bits<kType>;
    if (m < Bits::kSubnormals) return static_cast<uint16_t>(units(Bits::kLowest));
    if (m >= Bits::kSpecial) return static_cast<uint16_t>(m << Bits::kShift | 0x7f80);
    return static_cast<uint16_t>((m << Bits::kShift) + (Bits::kBias << 7));
  }
}

template <Element kType>
struct Magnitudes {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr Magnitudes() {
    for (int m = 0; m < 128; ++m) {
      low[m] = static_cast<uint8_t>(magnitude_as_bf16<kType>(m));
      high[m] = static_cast<uint8_t>(magnitude_as_bf16<kType>(m) >> 8);
    }
  }
};

// 64 values: in each lane of 128 bits the first eight of its 16 become the first vector's, the others the second's.
template <Element kType>
inline void values_as_bf16(__m512i values, __m512i (&out)[2]) {
  static constexpr Magnitudes<kType> kMagnitudes;
  const auto look_up = [](const uint8_t (&table)[128], __m512i index) {  // seven bits of it count
    return _mm512_maskz_permutex2var_epi8(kAllBytes, load<__m512i>(table), index, load<__m512i>(table + 64));
  };
  const __m512i index = kType == Element::int8 ? _mm512_maskz_abs_epi8(kAllBytes, values) : values;
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  __m512i high = _mm512_ternarylogic_epi32(look_up(kMagnitudes.high, index), values, _mm512_set1_epi8(-128), kOrAnd);
  if constexpr (kType == Element::int8) {  // −128 has no magnitude in seven bits
    constexpr int kHighest = 0xc3;
    const __mmask64 lowest = _mm512_cmpeq_epi8_mask(values, _mm512_set1_epi8(-128));
    high = _mm512_mask_mov_epi8(high, lowest, _mm512_set1_epi8(static_cast<char>(kHighest)));
  }
  const __m512i low = look_up(kMagnitudes.low, index);
  out[0] = _mm512_maskz_unpacklo_epi8(kAllBytes, low, high);
  out[1] = _mm512_maskz_unpackhi_epi8(kAllBytes, low, high);
}

// Words of four 8-bit values as two of two.
template <Element kType>
inline void halve(U32 words, __m512i (&out)[2]) {
  // In each lane of 128 bits the first halves of its words, then the second ones.
  const __m512i halves =
      _mm512_maskz_broadcast_i32x4(0xffff, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  values_as_bf16<kType>(_mm512_maskz_shuffle_epi8(kAllBytes, (__m512i)words, halves), out);
}

template <Element kType>
inline int64_t values_to_bf16(const void* source, uint16_t* out, int64_t n) {
  int64_t i = 0;
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // in which the first 32 come first
  for (; i + 64 <= n; i += 64) {
    __m512i halves[2];
    values_as_bf16<kType>(_mm512_maskz_permutexvar_epi64(0xff, order, load<__m512i>(static_cast<const char*>(source) + i)),
                          halves);
    store(out + i, halves[0]);
    store(out + i + 32, halves[1]);
  }
  return i;
}

inline void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, uint16_t* out) {
  // The group's sixteen values, twice: an index into words takes five bits, and the fifth is another nibble's.
  const F32 values = values_of_nibbles() * s + z;
  const __m512i table = _mm512_maskz_broadcast_i64x4(0xff, (__m256i)_mm512_cvtneps_pbh((__m512)values));
  for (int64_t k = 0; k < n; k += kNibbles) {
    const __m512i bytes = _mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>(packed + k / 2));
    const U32 words = (U32)bytes | (U32)bytes << 12;
    store(out + k, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, (__m512i)words, table));
  }
}

}  // namespace
}  // namespace aoext::cpu
