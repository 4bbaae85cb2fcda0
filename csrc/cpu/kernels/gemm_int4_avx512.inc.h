// int4
#pragma once

#include "cpu/kernels/gemm_avx512.inc.h"

namespace aoext::cpu {
namespace {

// Word i of four has weights i and i + 4 of eight, and so has x.
constexpr int64_t kEight = 8;
constexpr float kOffset = 16 + 8;

void int4_in_lanes(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  each_words<4, kLine>(first.packed + begin / 2, rows, n / 2, out, [](U32 words, int64_t, int, char* to) {
    // Nibbles come to lie on the upper four bits of the mantissa of 16.
    constexpr int kAndXor = 0x6a;  // (a & b) ^ c
    const U32 moved[] = {words << 3, words >> 1, words >> 5, words >> 9};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      store(to + i * kStepBytes,
            _mm512_ternarylogic_epi32((__m512i)moved[i], _mm512_set1_epi32(0x00780078), _mm512_set1_epi32(0x41c041c0), kAndXor));
  });
}

// q · scale + zero_point, rounded: of short groups, of 8 << shift weights, whose scales cost many rows of x more than operands
// do.
void scaled_int4_in_lanes(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const int shift = first.group_size == 32 ? 2 : first.group_size == 16 ? 1 : 0;
  const int64_t skipped = begin / kEight, last = n / kEight - 1;
  uint16_t order[2 * kFloats];  // one of the first half, one of the second
  for (int i = 0; i < 2 * kFloats; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * kFloats);
  const __m512i in_turn = load<__m512i>(order);
  const F32 values = values_of_nibbles();
  // Copies, which no store can change.
  const auto unpack = [=, scales = first.scale, zero_points = first.zero_point](U32 words, int64_t word, int band, char* to) {
    const int64_t at = (skipped + (word < last ? word : last)) >> shift;
    const F32 scale = load<F32>(scales + at * kTile + band * kFloats),
              zero = load<F32>(zero_points + at * kTile + band * kFloats);
    const auto value = [&](int i) __attribute__((always_inline)) {
      const __m512 q = _mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * i)), (__m512)values);
      return (__m512)multiply_add((F32)q, scale, zero);
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i two = (__m512i)_mm512_cvtne2ps_pbh(value(2 * i + 1), value(2 * i));
      store(to + i * kStepBytes, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, in_turn, two));
    }
  };
  each_words<4, kLine>(first.packed + begin / 2, rows, n / 2, out, unpack);
  // Past the end zeros, as those of x, whatever the last zero points are.
  const int64_t known = n / 2, padded = (n + kPad - 1) / kPad * kPad / 2;  // words of two
  memset(static_cast<char*>(out) + known * kStepBytes, 0, static_cast<size_t>((padded - known) * kStepBytes));
}

// 32 operands in the order of the words that int4_in_lanes writes.
inline __m512i in_eights(__m512i row) {
  uint16_t order[2 * kFloats];
  for (int i = 0; i < 2 * kFloats; ++i) order[i] = static_cast<uint16_t>(i / kEight * kEight + i % 2 * 4 + i % kEight / 2);
  return _mm512_maskz_permutexvar_epi16(~__mmask32{0}, load<__m512i>(order), row);
}

template <int64_t kDepth>
void operands_in_eights(Element from, const void* source, int64_t n, void* out) {
  alignas(64) uint16_t row[kDepth];
  operands<Element::bf16, uint16_t>(from, source, n, row);
  for (int64_t k = 0; k < n; k += 2 * kFloats) store(static_cast<uint16_t*>(out) + k, in_eights(load<__m512i>(row + k)));
}

template <int kLimbs>
void multiply_int4_lanes(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                         int64_t begin, int64_t n, void* acc) {
  const char *const block = static_cast<const char*>(w), *const inputs = static_cast<const char*>(x);
  constexpr int64_t kInWord = kWordBytes / sizeof(uint16_t);
  const int64_t words = n / kInWord, of_group = first.group_size / kInWord;
  const int64_t begun = begin % first.group_size / kInWord, before = begin / first.group_size;
  each_inputs(M, [&](auto count, int64_t m) __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::count;
    F32 sums[kCount][kBands];
    char* const to = static_cast<char*>(acc) + m * kBands * kLine;
    for (int r = 0; r < kCount; ++r)
      for (int band = 0; band < kBands; ++band) sums[r][band] = load<F32>(to + (r * kBands + band) * kLine);
    int64_t group = before;
    for (int64_t word = 0, end = of_group - begun; word < words; word = end, end += of_group, ++group) {
      if (end > words) end = words;
      F32 part[kCount][kBands];
      add_words<LanesBf16, kCount, kLimbs>(block, inputs + m * kLimbs * kDepthBytes, word, end, part);
      const bool starts = word > 0 || begun == 0;
      const float* const of_x = x_sums + group * x_stride + m;
      for (int band = 0; band < kBands; ++band) {
        const int64_t at = group * kTile + band * kFloats;
        const F32 scale = load<F32>(first.scale + at), zero_point = load<F32>(first.zero_point + at);
        for (int r = 0; r < kCount; ++r) {
          sums[r][band] += scale * part[r][band];
          if (starts) sums[r][band] += zero_point * of_x[r];
        }
      }
    }
    for (int r = 0; r < kCount; ++r)
      for (int band = 0; band < kBands; ++band) store(to + (r * kBands + band) * kLine, sums[r][band]);
  });
}

// Not rows whose sums of x by 31, or of x alone, might leave float32's range where those by weights do not.
bool lanes_take(Element, const void* row, int64_t K) {
  constexpr uint32_t kExponent = 0x7fff, kMost = (127 + 100) << 7;  // 2¹⁰⁰
  const uint16_t* const x = static_cast<const uint16_t*>(row);
  uint16_t most = 0;
  for (int64_t k = 0; k < K; ++k) {
    const uint16_t magnitude = x[k] & kExponent;
    most = magnitude > most ? magnitude : most;
  }
  return most < kMost;
}

constexpr Tiles kLanesBf16{.operand_bytes = sizeof(uint16_t),
                           .rows = kTile,
                           .depth = kDepthOf<LanesBf16>,
                           .inputs = inputs<operands<Element::bf16, uint16_t>>,
                           .weights = weights_in_lanes,
                           .weights_int4 = scaled_int4_in_lanes,
                           .multiply = multiply_lanes<LanesBf16>,
                           .add_of_groups = add_of_groups,
                           .in_order = true};
constexpr Tiles kLanesBf16Int4{.operand_bytes = sizeof(uint16_t),
                               .rows = kTile,
                               .depth = kDepthOf<LanesBf16>,
                               .inputs = inputs<operands_in_eights<kDepthOf<LanesBf16>>>,
                               .weights_int4 = int4_in_lanes,
                               .in_order = true,
                               .offset = kOffset,
                               .multiply_int4 = multiply_int4_lanes<1>,
                               .takes = lanes_take};

}  // namespace
}  // namespace aoext::cpu
