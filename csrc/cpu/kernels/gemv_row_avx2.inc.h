// Products of one row of x (gemv_row.inc.h) in pairs of bytes in 16 bits, 32 codes at a time. CPUs with instructions for products
// of bytes in vectors of 32 gain nothing by them here.
#pragma once

#include "cpu/kernels/gemv_row.inc.h"

namespace aoext::cpu {
namespace {

// Factors of eight groups as they meet chunks: 16 bits of a group, or of one in each half.
template <int kGroup>
struct FactorsOfChunks {
  uint8_t at[8][kChunk];
};
template <int kGroup>
constexpr FactorsOfChunks<kGroup> kFactorsOfChunks = [] {
  FactorsOfChunks<kGroup> all{};
  for (int chunk = 0; chunk < 8; ++chunk)
    for (int i = 0; i < kChunk; ++i) {
      const int group = (chunk * kChunk + i) / kGroup % 8;
      all.at[chunk][i] = static_cast<uint8_t>(2 * group + i % 2);
    }
  return all;
}();

// Eight integers as bytes, as floats.
template <bool kSigned>
inline F32 floats_of(uint64_t bytes) {
  const __m128i v = _mm_cvtsi64_si128(static_cast<long long>(bytes));
  return (F32)_mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
}

template <Code kCode, int kLimbs>
inline F32 multiply_row_of_256(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr Integer kFactor = kOf.scale.factor, kMinimum = kOf.zero_point.factor;
  constexpr int kGroups = kOf.values / kOf.group, kEights = kGroups / 8;
  constexpr bool kHasMinima = kOf.zero_point.at >= 0;
  static_assert(kOf.values == 256 && !kOf.looks_up && kOf.zero_point.is_taken_off == kHasMinima);
  F32 sums = {}, beside = {};
  for (; blocks > 0; --blocks, row += kOf.bytes, ++x_scales, x_sums += kGroups) {
    const float d = half_at(row + kOf.scale.at);
    __m256i factors[kEights];  // of eight groups in 16 bits, twice
    F32 of_sums = {};
    for (int e = 0; e < kEights; ++e) {
      const uint64_t bytes = integers_at<kFactor, kGroups>(row, 8 * e);
      __m128i eight = _mm_cvtepi8_epi16(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
      if constexpr (!kFactor.is_signed && kFactor.middle != 0) eight = _mm_sub_epi16(eight, _mm_set1_epi16(kFactor.middle));
      factors[e] = _mm256_broadcastsi128_si256(eight);
      const F32 of_x = load<F32>(x_sums + 8 * e);
      if constexpr (kHasMinima)
        of_sums = multiply_add(floats_of<false>(integers_at<kMinimum, kGroups>(row, 8 * e)), of_x, of_sums);
      else
        of_sums = multiply_add((F32)_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight)), of_x, of_sums);
    }
    __m256i totals[kLimbs] = {};
#pragma GCC unroll 8
    for (int chunk = 0; chunk < 8; ++chunk) {
      const __m256i u = (__m256i)codes_at<kCode>(row, chunk * kChunk);
      const __m256i factor =
          _mm256_shuffle_epi8(factors[chunk * kEights / 8], load<__m256i>(kFactorsOfChunks<kOf.group>.at[chunk]));
#pragma GCC unroll 3
      for (int limb = 0; limb < kLimbs; ++limb) {
        const __m256i of_x = load<__m256i>(x + (chunk * kLimbs + limb) * kChunk);
        totals[limb] = _mm256_add_epi32(totals[limb], _mm256_madd_epi16(_mm256_maddubs_epi16(u, of_x), factor));
      }
    }
    F32 total = (F32)_mm256_cvtepi32_ps(totals[0]);
    for (int limb = 1; limb < kLimbs; ++limb) total = multiply_add(total, broadcast(256), (F32)_mm256_cvtepi32_ps(totals[limb]));
    sums = multiply_add(total, broadcast(d * *x_scales), sums);
    beside = multiply_add(of_sums, broadcast(kHasMinima ? -half_at(row + kOf.zero_point.at) : d), beside);
    x += kLimbs * kOf.values;
  }
  return sums + beside;
}

template <Code kCode, int kLimbs>
inline F32 multiply_row_of_32(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums) {
  constexpr Layout kOf = layout_of(kCode);
  constexpr bool kIsSigned = kOf.code.is_signed || kOf.looks_up, kHasZeroPoints = kOf.zero_point.at >= 0;
  static_assert(kOf.values == kChunk && !kOf.zero_point.is_taken_off);
  constexpr int kTurns = 2;  // so that no sum waits for the one before it
  F32 sums[kTurns] = {};
  float beside[kTurns] = {};
  const auto step = [&](int64_t b, int turn) AOEXT_INLINE {
    const uint8_t* const block = row + b * kOf.bytes;
    const float d = half_at(block + kOf.scale.at);
    const U32 u = (U32)codes_at<kCode>(block, 0);
    I32 total = {};
#pragma GCC unroll 3
    for (int limb = 0; limb < kLimbs; ++limb) {
      if (limb > 0) total <<= 8;
      total = add_products<kIsSigned>(total, u, load<U32>(x + (b * kLimbs + limb) * kChunk));
    }
    sums[turn] = multiply_add(__builtin_convertvector(total, F32), broadcast(d * x_scales[b]), sums[turn]);
    if constexpr (kHasZeroPoints)
      beside[turn] += half_at(block + kOf.zero_point.at) * x_sums[b];
    else if constexpr (!kIsSigned)
      beside[turn] += d * x_sums[b];
  };
  int64_t b = 0;
  for (; b + kTurns <= blocks; b += kTurns) {
#pragma GCC unroll 2
    for (int turn = 0; turn < kTurns; ++turn) step(b + turn, turn);
  }
  if (b < blocks) step(b, 0);
  F32 all = sums[0] + sums[1];
  all[0] += beside[0] + beside[1];
  return all;
}

template <int kLimbs>
constexpr GemvPlanes kGemvRow{.limbs = {.count = kLimbs, .split = kGemvPlanes<kLimbs>.limbs.split},
                              .vector = kChunk,
                              .longest_segment = 0,
                              .by_blocks = true,
                              .dot = dot_row<kLimbs>};

}  // namespace
}  // namespace aoext::cpu
