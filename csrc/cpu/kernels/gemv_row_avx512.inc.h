// Products of one row of x (gemv_row.inc.h) by AVX-512 and VNNI, 64 codes at a time, unsigned: signed ones are 128 more, and so
// is what meets the sums of x. Blocks of 256 have a file of their own.
//
// A vector of nibbles of blocks of 32 is four loads of 16 bytes, from as many blocks. So a lane's products are of one block, low
// and high nibbles share its scale, and 16 blocks' scales are converted at once.
#pragma once

#include "cpu/kernels/gemv_row_256_avx512.inc.h"
#include "cpu/kernels/gemv_row_order_avx512.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

// 16 bytes of each of four blocks.
template <int kBytes>
inline __m512i four_of(const uint8_t* at) {
  __m512i v = _mm512_castsi128_si512(load<__m128i>(at));
  v = _mm512_inserti32x4(v, load<__m128i>(at + kBytes), 1);
  v = _mm512_inserti32x4(v, load<__m128i>(at + 2 * kBytes), 2);
  return _mm512_inserti32x4(v, load<__m128i>(at + 3 * kBytes), 3);
}

// Two vectors of codes of four blocks.
template <Code kCode>
inline void codes_of_four(const uint8_t* blocks, U32 (&u)[2]) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr Bits kLow = kOf.code.planes[0], kTop = kOf.code.planes[1];
  constexpr uint32_t kNibbles = 0x0f0f0f0fu, kSigns = 0x80808080u;
  if constexpr (kLow.bits == 8) {
    for (int i = 0; i < 2; ++i) u[i] = (U32)four_of<kOf.bytes>(blocks + kLow.at + kRunOfX * i) ^ kSigns;
  } else {
    static_assert(kLow.bits == 4 && kLow.run == 16);
    const U32 both = (U32)four_of<kOf.bytes>(blocks + kLow.at);
    u[0] = both & kNibbles;
    u[1] = both >> 4 & kNibbles;
  }
  if constexpr (kTop.bits > 0) {
    static_assert(kTop.bits == 1 && kTop.run == 1);
    const auto bits_of = [&](int block, int vector) {
      return static_cast<uint64_t>(load<uint16_t>(blocks + block * kOf.bytes + kTop.at + 2 * vector)) << 16 * block;
    };
    for (int i = 0; i < 2; ++i) {
      const uint64_t bits = (bits_of(0, i) | bits_of(1, i)) | (bits_of(2, i) | bits_of(3, i));
      u[i] = (U32)_mm512_mask_add_epi8((__m512i)u[i], bits, (__m512i)u[i], _mm512_set1_epi8(1 << kLow.bits));
    }
  }
  if constexpr (kOf.looks_up) {
    const __m512i table = _mm512_maskz_broadcast_i32x4(0xffff, load<__m128i>(kIq4));
    for (int i = 0; i < 2; ++i) u[i] = (U32)_mm512_maskz_shuffle_epi8(kAllBytes, table, (__m512i)u[i]) ^ kSigns;
  }
}

// A half of each of 4 kFours blocks as floats, and zeros: two or four from each load.
template <int kFours, int kBytes>
inline F32 halves_of(const uint8_t* at) {
  constexpr int kWords = kBytes / 2;
  constexpr bool kTwice = 3 * kWords < 32;
  __m256i all = {};
  if constexpr (kTwice) {
    const __m512i words =
        _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3 * kWords, 2 * kWords, kWords, 0, 3 * kWords,
                         2 * kWords, kWords, 0, 3 * kWords, 2 * kWords, kWords, 0, 3 * kWords, 2 * kWords, kWords, 0);
    __m512i wide = {};
    for (int i = 0; i < kFours; ++i)
      wide = _mm512_mask_permutexvar_epi16(wide, 0xfu << 4 * i, words, load<__m512i>(at + 4 * i * kBytes));
    all = _mm512_castsi512_si256(wide);
  } else if constexpr (kWords < 16) {
    const __m256i words = _mm256_set1_epi32(kWords << 16);
    for (int i = 0; i < 2 * kFours; ++i)
      all = _mm256_mask_permutexvar_epi16(all, 3u << 2 * i, words, load<__m256i>(at + 2 * i * kBytes));
  } else {
    static_assert(kWords < 32);
    const __m512i words = _mm512_set1_epi32(kWords << 16);
    __m512i wide = {};
    for (int i = 0; i < 2 * kFours; ++i)
      wide = _mm512_mask_permutexvar_epi16(wide, 3u << 2 * i, words, load<__m512i>(at + 2 * i * kBytes));
    all = _mm512_castsi512_si256(wide);
  }
  return (F32)_mm512_maskz_cvtph_ps(0xffff, all);
}

// What a row of blocks of 32 comes to.
struct SumsOfRow {
  F32 products[2] = {}, beside = {};  // two, so that no sum waits for the one before it
};

// 4 kFours blocks, which meet x from block b on.
template <Code kCode, int kLimbs, int kFours>
inline void add_blocks_of_32(const uint8_t* blocks, int64_t b, const int8_t* x, const float* x_scales, const float* x_sums,
                             SumsOfRow& sums) {
  constexpr Layout kOf = layout_of(kCode);
  x += b * kLimbs * kOf.values, x_scales += b, x_sums += b;
  constexpr __mmask16 kThese = static_cast<__mmask16>((1u << 4 * kFours) - 1);
  const auto of_x = [](const float* from) { return (F32)_mm512_maskz_loadu_ps(kThese, from); };
  const F32 d = halves_of<kFours, kOf.bytes>(blocks + kOf.scale.at), scales = d * of_x(x_scales);
  F32 meets_sums = d;
  if constexpr (kOf.zero_point.at >= 0) meets_sums = halves_of<kFours, kOf.bytes>(blocks + kOf.zero_point.at);
  sums.beside = multiply_add(meets_sums, of_x(x_sums), sums.beside);
#pragma GCC unroll 4
  for (int four = 0; four < kFours; ++four) {
    U32 u[2];
    codes_of_four<kCode>(blocks + 4 * four * kOf.bytes, u);
    fetch_ahead<4 * kOf.bytes>(blocks + 4 * four * kOf.bytes);
    const auto products = [&](I32 total, int limb) AOEXT_INLINE {
      for (int i = 0; i < 2; ++i) total = dot_bytes(total, u[i], load<U32>(x + ((2 * four + i) * kLimbs + limb) * kLimbBytes));
      return total;
    };
    I32 integers = products(I32{}, 0);
    if constexpr (kLimbs > 1) integers = products(integers << 8, 1);
    F32 total = __builtin_convertvector(integers, F32);
    if constexpr (kLimbs > 2) total = multiply_add(total, broadcast(256), __builtin_convertvector(products(I32{}, 2), F32));
    const I32 lanes = group_of_lane<4>() + 4 * four;
    const F32 s = (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)lanes, (__m512)scales);
    sums.products[four % 2] = multiply_add(total, s, sums.products[four % 2]);
  }
}

template <Code kCode, int kLimbs>
inline F32 multiply_row_of_32(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums) {
  constexpr Layout kOf = layout_of(kCode);
  static_assert(kOf.values == 32 && !kOf.zero_point.is_taken_off);
  SumsOfRow sums;
  int64_t b = 0;
  for (; b + 16 <= blocks; b += 16) add_blocks_of_32<kCode, kLimbs, 4>(row + b * kOf.bytes, b, x, x_scales, x_sums, sums);
  for (; b + 4 <= blocks; b += 4) add_blocks_of_32<kCode, kLimbs, 1>(row + b * kOf.bytes, b, x, x_scales, x_sums, sums);
  if (b < blocks) {
    uint8_t last[4 * kOf.bytes] = {};
    memcpy(last, row + b * kOf.bytes, static_cast<size_t>(blocks - b) * kOf.bytes);
    add_blocks_of_32<kCode, kLimbs, 1>(last, b, x, x_scales, x_sums, sums);
  }
  return (sums.products[0] + sums.products[1]) + sums.beside;
}

template <int kLimbs>
constexpr GemvPlanes kGemvRow{.limbs = {.count = kLimbs, .split = kGemvPlanes<kLimbs>.limbs.split},
                              .vector = kInUnit,
                              .longest_segment = 0,
                              .by_blocks = true,
                              .arrange = arrange_row<kLimbs>,
                              .dot = dot_row<kLimbs>};

}  // namespace
}  // namespace aoext::cpu
