// Blocks of 256 by one row of x (gemv_row.inc.h) by AVX-512 and VNNI: a vector of codes is two runs of 32 bytes that lie side by
// side, or the same ones twice, and its pairs of products meet their factors in one instruction. The integers of groups are
// gathered by the bytes and bits that a format has them at.
#pragma once

#include "cpu/kernels/gemv_row_order_avx512.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

// The bits of a plane that codes i to i + 31 have, then those of codes j to j + 31, from bit `low` on.
template <Bits kBits>
inline U32 plane_of(const uint8_t* block, int i, int j, int low) {
  constexpr uint32_t kMask = 0x01010101u * ((1u << kBits.bits) - 1);
  static_assert(kBits.run % 32 == 0);
  const int first = kBits.byte_of(i), second = kBits.byte_of(j);
  const __m256i half = load<__m256i>(block + first);
  const __m512i v = second == first + 32 ? load<__m512i>(block + first) : _mm512_maskz_broadcast_i64x4(0xff, half);
  const long long right = kBits.shift_of(i) - low, right_of_second = kBits.shift_of(j) - low;
  const __m512i by =
      _mm512_set_epi64(right_of_second, right_of_second, right_of_second, right_of_second, right, right, right, right);
  const __m512i moved = right == 0 && right_of_second == 0 ? v : _mm512_maskz_rorv_epi64(0xff, v, by);
  return (U32)moved & (kMask << low);
}

template <Code kCode>
inline U32 vector_of_codes(const uint8_t* block, int vector) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr Bits kLow = kOf.code.planes[0], kTop = kOf.code.planes[1];
  static_assert(kOf.code.planes[2].bits == 0);
  const int i = code_at(kOf, vector, 0), j = code_at(kOf, vector, 2);
  U32 codes = plane_of<kLow>(block, i, j, 0);
  if constexpr (kTop.bits > 0) codes |= plane_of<kTop>(block, i, j, kLow.bits);
  return codes;
}

// Where integers of groups lie within 16 bytes, those of kFirst and behind them those of kSecond: for each plane the byte of
// each, where it begins in 64 bits of such bytes, and which of its bits they are.
struct BytesOfGroups {
  int at = 0;
  alignas(16) uint8_t bytes[3][16] = {}, shifts[3][16] = {}, masks[3][16] = {};
};
template <Integer kFirst, Integer kSecond, int kGroups>
constexpr BytesOfGroups kBytesOfGroups = [] {
  BytesOfGroups all{};
  const int count = kSecond.bits() > 0 ? 2 * kGroups : kGroups;
  const auto plane_of = [](int i, int p) { return (i < kGroups ? kFirst : kSecond).planes[p]; };
  all.at = plane_of(0, 0).byte_of(0);
  for (int p = 0; p < 3; ++p)
    for (int i = 0; i < count; ++i)
      if (const Bits plane = plane_of(i, p); plane.bits > 0 && plane.byte_of(i % kGroups) < all.at)
        all.at = plane.byte_of(i % kGroups);
  for (int p = 0, low = 0; p < 3; low += kFirst.planes[p].bits, ++p)
    for (int i = 0; i < count; ++i) {
      const Bits plane = plane_of(i, p);
      all.bytes[p][i] = static_cast<uint8_t>(plane.byte_of(i % kGroups) - all.at);
      all.shifts[p][i] = static_cast<uint8_t>((8 * i + plane.shift_of(i % kGroups) - low) & 63);
      all.masks[p][i] = static_cast<uint8_t>(((1 << plane.bits) - 1) << low);
    }
  return all;
}();

// These integers, a byte each, of a block, or of two.
template <Integer kFirst, Integer kSecond, int kGroups>
inline __m128i integers_of(const uint8_t* block) {
  constexpr const BytesOfGroups& kOf = kBytesOfGroups<kFirst, kSecond, kGroups>;
  const __m128i near = load<__m128i>(block + kOf.at);
  __m128i all = {};
#pragma GCC unroll 3
  for (int p = 0; p < 3; ++p)
    if (kFirst.planes[p].bits > 0) {
      const __m128i bytes = _mm_shuffle_epi8(near, load<__m128i>(kOf.bytes[p]));
      all |= _mm_maskz_multishift_epi64_epi8(0xffff, load<__m128i>(kOf.shifts[p]), bytes) & load<__m128i>(kOf.masks[p]);
    }
  return all;
}
template <Integer kFirst, Integer kSecond, int kGroups>
inline __m256i integers_of(const uint8_t* block, const uint8_t* next) {
  constexpr const BytesOfGroups& kOf = kBytesOfGroups<kFirst, kSecond, kGroups>;
  const auto twice = [](const uint8_t* table) { return _mm256_broadcastsi128_si256(load<__m128i>(table)); };
  const __m256i near =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load<__m128i>(block + kOf.at)), load<__m128i>(next + kOf.at), 1);
  __m256i all = {};
#pragma GCC unroll 3
  for (int p = 0; p < 3; ++p)
    if (kFirst.planes[p].bits > 0) {
      const __m256i bytes = _mm256_shuffle_epi8(near, twice(kOf.bytes[p]));
      all |= _mm256_maskz_multishift_epi64_epi8(~__mmask32{0}, twice(kOf.shifts[p]), bytes) & twice(kOf.masks[p]);
    }
  return all;
}

// Which factor pairs of codes meet.
template <Code kCode>
struct FactorsOfPairs {
  uint16_t at[4][32];
};
template <Code kCode>
constexpr FactorsOfPairs<kCode> kFactorsOfPairs = [] {
  constexpr Layout kOf = layout_of(kCode);
  FactorsOfPairs<kCode> all{};
  for (int vector = 0; vector < 4; ++vector)
    for (int i = 0; i < 32; ++i)
      all.at[vector][i] = static_cast<uint16_t>((code_at(kOf, vector, 2 * i / kRunOfX) + 2 * i % kRunOfX) / kOf.group);
  return all;
}();

// Σ factor · Σ u x of a block, in as many lanes as there are; its factors are the words of `factors` from `first` on.
template <Code kCode, int kLimbs>
inline F32 products_of_256(const uint8_t* block, const int8_t* x, __m512i factors, int first) {
  fetch_ahead<layout_of(kCode).bytes>(block);
  __m512i totals[kLimbs] = {};
#pragma GCC unroll 4
  for (int vector = 0; vector < 4; ++vector) {
    const __m512i u = (__m512i)vector_of_codes<kCode>(block, vector);
    const __m512i words =
        _mm512_add_epi16(load<__m512i>(kFactorsOfPairs<kCode>.at[vector]), _mm512_set1_epi16(static_cast<int16_t>(first)));
    const __m512i factor = _mm512_maskz_permutexvar_epi16(~__mmask32{0}, words, factors);
#pragma GCC unroll 3
    for (int limb = 0; limb < kLimbs; ++limb) {
      const __m512i of_x = load<__m512i>(x + (vector * kLimbs + limb) * kLimbBytes);
      totals[limb] = _mm512_dpwssd_epi32(totals[limb], _mm512_maskz_maddubs_epi16(~__mmask32{0}, u, of_x), factor);
    }
  }
  F32 total = __builtin_convertvector((I32)totals[0], F32);
  for (int limb = 1; limb < kLimbs; ++limb)
    total = multiply_add(total, broadcast(256), __builtin_convertvector((I32)totals[limb], F32));
  return total;
}

// Blocks of eight groups, two at a time: what each has beside its codes is half a vector.
template <Code kCode, int kLimbs>
inline F32 multiply_row_of_eights(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales,
                                  const float* x_sums) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr int kGroups = 8;
  static_assert(kOf.values / kOf.group == kGroups && kOf.zero_point.is_taken_off && kOf.zero_point.at == kOf.scale.at + 2);
  static_assert(kOf.scale.factor.middle == 0 && kOf.zero_point.factor.middle == 0 && kOf.scale.factor.bits() < 8);
  constexpr uint8_t kNothing[kOf.bytes] = {};
  const I32 of_minima = {1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3};
  F32 sums[2] = {}, beside = {};
  for (int64_t b = 0; b < blocks; b += 2) {
    const bool both = b + 1 < blocks;
    const uint8_t* const at[] = {row + b * kOf.bytes, both ? row + (b + 1) * kOf.bytes : kNothing};
    const int8_t* const of_x[] = {x + b * kLimbs * kOf.values, x + (both ? b + 1 : b) * kLimbs * kOf.values};
    // Each lane's factors, then its minima.
    const __m256i bytes = integers_of<kOf.scale.factor, kOf.zero_point.factor, kGroups>(at[0], at[1]);
    const __m512i words = _mm512_maskz_cvtepi8_epi16(~__mmask32{0}, bytes);
    const __m128i minima = _mm256_castsi256_si128(_mm256_permute4x64_epi64(bytes, 0xd));
    const F32 of_sums = (F32)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, minima)) *
                        (F32)_mm512_maskz_loadu_ps(both ? 0xffff : 0xff, x_sums + b * kGroups);
    // d and the minima's, of both.
    const auto halves = [](const uint8_t* block) { return load<int32_t>(block + kOf.scale.at); };
    const __m128 d = _mm_cvtph_ps(_mm_insert_epi32(_mm_cvtsi32_si128(halves(at[0])), halves(at[1]), 1));
    beside -= of_sums * (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)of_minima, _mm512_castps128_ps512(d));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const F32 products = products_of_256<kCode, kLimbs>(at[i], of_x[i], words, 2 * kGroups * i);
      sums[i] = multiply_add(products, broadcast(d[2 * i] * x_scales[b + i]), sums[i]);
    }
  }
  return (sums[0] + sums[1]) + beside;
}

template <Code kCode, int kLimbs>
inline F32 multiply_row_of_256(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr Integer kFactor = kOf.scale.factor, kMinimum = kOf.zero_point.factor;
  constexpr int kGroups = kOf.values / kOf.group;
  constexpr bool kHasMinima = kOf.zero_point.at >= 0;
  static_assert(kOf.values == 256 && !kOf.looks_up && kOf.zero_point.is_taken_off == kHasMinima);
  if constexpr (kGroups == 8) {
    return multiply_row_of_eights<kCode, kLimbs>(row, blocks, x, x_scales, x_sums);
  } else {
    static_assert(kGroups == kFloats);
    F32 sums = {}, beside = {};
    for (; blocks > 0; --blocks, row += kOf.bytes, ++x_scales, x_sums += kGroups) {
      const float d = half_at(row + kOf.scale.at);
      __m256i words = _mm256_cvtepi8_epi16(integers_of<kFactor, Integer{}, kGroups>(row));
      if constexpr (!kFactor.is_signed && kFactor.middle != 0) words = _mm256_sub_epi16(words, _mm256_set1_epi16(kFactor.middle));
      __m512i meets_sums;
      if constexpr (kHasMinima)
        meets_sums = _mm512_maskz_cvtepi8_epi32(0xffff, integers_of<kMinimum, Integer{}, kGroups>(row));
      else
        meets_sums = _mm512_maskz_cvtepi16_epi32(0xffff, words);
      const F32 of_sums = (F32)_mm512_maskz_cvtepi32_ps(0xffff, meets_sums) * load<F32>(x_sums);
      const F32 products = products_of_256<kCode, kLimbs>(row, x, _mm512_castsi256_si512(words), 0);
      sums = multiply_add(products, broadcast(d * *x_scales), sums);
      beside = multiply_add(of_sums, broadcast(kHasMinima ? -half_at(row + kOf.zero_point.at) : d), beside);
      x += kLimbs * kOf.values;
    }
    return sums + beside;
  }
}

}  // namespace
}  // namespace aoext::cpu
