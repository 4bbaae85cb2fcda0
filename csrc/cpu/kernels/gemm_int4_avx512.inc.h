// int4 for gemm_avx512.inc.h: a word is 8 weights, which become 4 words of bfloat16.
//
// By a shift and a bit operation each: 16 + (q ^ 8), exact, which the sums of x undo. So no weight is rounded; a group's sums
// meet its scale in float32. Many rows of x by short groups take words of q · scale + zero_point, rounded.
#pragma once

#include "cpu/kernels/gemm_avx512.inc.h"

namespace aoext::cpu {
namespace {

// Word i of four has weights i and i + 4 of eight, and so has x.
constexpr int64_t kEight = 8;
constexpr float kOffset = 16 + 8;

// Loaders of int4 make four words of one.
struct WordsOfInt4 {
  static constexpr int kWords = 4;
  static constexpr int64_t kMultiple = kLine;
};

struct OffsetCodes : WordsOfInt4 {
  void operator()(U32 words, int64_t, int, char* to) const {
    // Nibbles come to lie on the upper four bits of the mantissa of 16.
    constexpr int kAndXor = 0x6a;  // (a & b) ^ c
    const U32 moved[] = {words << 3, words >> 1, words >> 5, words >> 9};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      store(to + i * kStepBytes,
            _mm512_ternarylogic_epi32((__m512i)moved[i], _mm512_set1_epi32(0x00780078), _mm512_set1_epi32(0x41c041c0), kAndXor));
  }
};

void pack_int4_codes(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_words(first.packed + begin / 2, rows, n / 2, out, OffsetCodes());
}

constexpr bool kWithZeroPoints = true, kWithoutZeroPoints = false;

// Indices of one operand of a vector's first half, one of its second.
inline __m512i halves_in_turn() {
  uint16_t order[2 * kFloats];
  for (int i = 0; i < 2 * kFloats; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * kFloats);
  return load<__m512i>(order);
}

// value · scale + zero_point, rounded: of short groups, whose scales cost many rows of x more than operands do, and of values
// that are not bfloat16. Groups are of 8 << shift weights, or all of one. All members are copies, which no store can change.
template <bool kZeroPoints>
struct ScaledNibbles : WordsOfInt4 {
  int64_t skipped, last;  // words before the block, and its last one
  int shift = 0;
  F32 values;
  __m512i in_turn = halves_in_turn();
  const float *scales, *zero_points;  // [groups, kPanel]

  ScaledNibbles(F32 values_, int64_t group_size, const float* scales_, const float* zero_points_, int64_t begin, int64_t n)
      : skipped(begin / kEight),
        last((n + kEight - 1) / kEight - 1),
        values(values_),
        scales(scales_),
        zero_points(zero_points_) {
    while (kEight << shift < group_size) ++shift;
  }

  void operator()(U32 words, int64_t word, int vector, char* to) const {
    const int64_t at = (skipped + (word < last ? word : last)) >> shift;
    const int64_t lanes = at * kPanel + vector * kFloats;
    const F32 scale = load<F32>(scales + lanes), zero = kZeroPoints ? load<F32>(zero_points + lanes) : F32{};
    const auto value = [&](int i) AOEXT_INLINE {
      const F32 q = (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * i)), (__m512)values);
      return (__m512)(kZeroPoints ? multiply_add(q, scale, zero) : q * scale);
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i two = (__m512i)_mm512_cvtne2ps_pbh(value(2 * i + 1), value(2 * i));
      store(to + i * kStepBytes, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, in_turn, two));
    }
  }
};

template <class Loader>
inline void pack_scaled_nibbles(const void* packed, const BlockRows& rows, int64_t n, void* out, const Loader& loader) {
  pack_words(packed, rows, n / 2, out, loader);
  // Past the end zeros, as those of x, whatever a nibble of 0 stands for.
  const int64_t known = n / 2, padded = (n + kPad - 1) / kPad * kPad / 2;  // words of two
  memset(static_cast<char*>(out) + known * kStepBytes, 0, static_cast<size_t>((padded - known) * kStepBytes));
}

void pack_int4_scaled(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const ScaledNibbles<kWithZeroPoints> loader(values_of_nibbles(), first.group_size, first.scale, first.zero_point, begin, n);
  pack_scaled_nibbles(first.packed + begin / 2, rows, n, out, loader);
}

// 32 operands in the order of the words that OffsetCodes writes.
inline __m512i in_eights(__m512i row) {
  uint16_t order[2 * kFloats];
  for (int i = 0; i < 2 * kFloats; ++i) order[i] = static_cast<uint16_t>(i / kEight * kEight + i % 2 * 4 + i % kEight / 2);
  return _mm512_maskz_permutexvar_epi16(~__mmask32{0}, load<__m512i>(order), row);
}

// A loader (gemm.inc.h) of x.
struct RowsInEights {
  using Operand = uint16_t;
  static void load(Element from, const void* source, int64_t n, uint16_t* out) {
    alignas(64) uint16_t row[kKCOf<DotBf16>];
    RowsAsBf16::load(from, source, n, row);
    for (int64_t k = 0; k < n; k += 2 * kFloats) store(out + k, in_eights(aoext::cpu::load<__m512i>(row + k)));
  }
};

// What the sums of groups meet: scales and zero points [groups, kPanel], the latter by sums of x, x_stride apart.
struct Groups {
  const float *scale, *zero_point, *x_sums;
  int64_t x_stride, size;
};

// n is a multiple of 4, and so are groups.
template <int kLimbs, bool kZeroPoints>
inline void macro_kernel_groups(const void* w, const void* x, const Groups& of, int64_t M, int64_t begin, int64_t n, void* acc) {
  const char *const block = static_cast<const char*>(w), *const rows = static_cast<const char*>(x);
  constexpr int64_t kInWord = kWordBytes / sizeof(uint16_t);
  const int64_t words = n / kInWord, of_group = of.size / kInWord;
  const int64_t begun = begin % of.size / kInWord, before = begin / of.size;
  each_mr(M, [&](auto count, int64_t m) AOEXT_INLINE {
    constexpr int kCount = decltype(count)::count;
    F32 sums[kCount][kPanelVectors];
    char* const to = static_cast<char*>(acc) + m * kPanelVectors * kLine;
    for (int r = 0; r < kCount; ++r)
      for (int vector = 0; vector < kPanelVectors; ++vector)
        sums[r][vector] = load<F32>(to + (r * kPanelVectors + vector) * kLine);
    int64_t group = before;
    for (int64_t word = 0, end = of_group - begun; word < words; word = end, end += of_group, ++group) {
      if (end > words) end = words;
      F32 part[kCount][kPanelVectors];
      micro_kernel_channels<DotBf16, kCount, kLimbs>(block, rows + m * kLimbs * kKCBytes, word, end, part);
      const bool starts = kZeroPoints && (word > 0 || begun == 0);
      const float* const of_x = kZeroPoints ? of.x_sums + group * of.x_stride + m : nullptr;
      for (int vector = 0; vector < kPanelVectors; ++vector) {
        const int64_t at = group * kPanel + vector * kFloats;
        const F32 scale = load<F32>(of.scale + at), zero_point = kZeroPoints ? load<F32>(of.zero_point + at) : F32{};
        for (int r = 0; r < kCount; ++r) {
          sums[r][vector] += scale * part[r][vector];
          if (starts) sums[r][vector] += zero_point * of_x[r];
        }
      }
    }
    for (int r = 0; r < kCount; ++r)
      for (int vector = 0; vector < kPanelVectors; ++vector) store(to + (r * kPanelVectors + vector) * kLine, sums[r][vector]);
  });
}

template <int kLimbs>
void macro_kernel_int4_codes(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                             int64_t begin, int64_t n, void* acc) {
  const Groups groups{first.scale, first.zero_point, x_sums, x_stride, first.group_size};
  macro_kernel_groups<kLimbs, kWithZeroPoints>(w, x, groups, M, begin, n, acc);
}

constexpr GemmInt4 kGemmInt4Bf16{.shape = kShapeBf16,
                                 .pack_w = pack_int4_scaled,
                                 .macro_kernel = macro_kernel_channels<DotBf16, kOneLimb>,
                                 .add_group_terms = add_group_terms};

constexpr GemmInt4Codes kGemmInt4Codes{.shape = {.operand_bytes = sizeof(uint16_t),
                                                 .NC = kPanel,
                                                 .KC = kKCOf<DotBf16>,
                                                 .fetch_next_panel = true,
                                                 .pack_x = pack_x_rows<RowsInEights>,
                                                 .accepts = accepts_bf16},
                                       .code_offset = kOffset,
                                       .pack_w = pack_int4_codes,
                                       .macro_kernel = macro_kernel_int4_codes<kOneLimb>};

}  // namespace
}  // namespace aoext::cpu
