// int4 as bfloat16 for AMX's gemm.
//
// 128 weights are 32 words of 16 bits: shifts by 0, 4, 8 and 12 bring each nibble in turn to where it looks up its group's
// values, in 12 instructions. So they lie as k = 0, 4, …, 124, then 1, 5, …, 125 and so on, and x does too.
#pragma once

#include "cpu/kernels/gemm_amx.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kFours = 128, kNibblesOfWord = 4, kWords = kFours / kNibblesOfWord;
static_assert(kPad % kFours == 0, "padded rows are whole x_panels of 128");

// Padded rows.
inline void lay_in_fours(const uint16_t* in, int64_t n, uint16_t* out) {
  for (int64_t k = 0; k < n; k += kFours)
    for (int64_t i = 0; i < kNibblesOfWord; ++i)
      for (int64_t j = 0; j < kWords; ++j) out[k + i * kWords + j] = in[k + kNibblesOfWord * j + i];
}

// Loaders (gemm.inc.h) of x and of int4.
struct RowsInFours {
  using Operand = uint16_t;
  static void load(Element from, const void* source, int64_t n, uint16_t* out) {
    alignas(64) uint16_t row[kKCAmx<DotBf16>];
    RowsAsBf16::load(from, source, n, row);
    lay_in_fours(row, n, out);
  }
};

// 128 weights of kGroups groups, the first of them g and of which `groups` exist, from `words` of which `kept` have weights.
template <int kGroups>
inline void int4_in_fours(const Int4Row& row, int64_t g, int64_t groups, __m512i words, __mmask32 kept, uint16_t* out) {
  static_assert(kGroups == 1 || kGroups == 2 || kGroups == 4, "a table has 64 values");
  const auto values = [&](int64_t i) {
    const int64_t at = (g + (i < groups ? i : 0)) * kPanel;
    return (__m512)(values_of_nibbles() * row.scale[at] + row.zero_point[at]);
  };
  // An index takes a bit too many where tables are of one group: they hold it twice.
  const __m512 first = values(0);
  const __m512i low = (__m512i)_mm512_cvtne2ps_pbh(kGroups == 1 ? first : values(1), first);
  const __m512i high = kGroups == 4 ? (__m512i)_mm512_cvtne2ps_pbh(values(3), values(2)) : low;
  uint16_t group_of_word[kWords];
  for (int64_t j = 0; j < kWords; ++j) group_of_word[j] = static_cast<uint16_t>(j * kGroups / kWords << 4);
  const __m512i group = load<__m512i>(group_of_word), nibble = _mm512_set1_epi16(15);
  for (int i = 0; i < kNibblesOfWord; ++i) {
    __m512i index = _mm512_maskz_srli_epi16(~__mmask32{0}, words, static_cast<unsigned>(4 * i));
    if constexpr (kGroups > 1) index = _mm512_or_si512(_mm512_and_si512(index, nibble), group);
    __m512i values_of_words = _mm512_maskz_permutexvar_epi16(kept, index, low);
    // The second half of the words looks up again: two look-ups in one table each take less than one in two.
    if constexpr (kGroups == 4) values_of_words = _mm512_mask_permutexvar_epi16(values_of_words, kept & 0xffff0000u, index, high);
    store(out + i * kWords, values_of_words);
  }
}

// Runs of 128 weights, of kGroups groups each or `runs_of_group` to one, in a loop without divisions.
template <int kGroups>
inline void int4_row_in_fours(const Int4Row& row, int64_t begin, int64_t n, int64_t runs_of_group, uint16_t* out) {
  const uint8_t* const packed = row.packed + begin / 2;
  int64_t g = begin / row.group_size, left = kGroups > 1 ? 1 : runs_of_group - begin / kFours % runs_of_group, i = 0;
  for (; i + kFours <= n; i += kFours) {
    int4_in_fours<kGroups>(row, g, kGroups, load<__m512i>(packed + i / 2), ~__mmask32{0}, out + i);
    if (--left > 0) continue;
    g += kGroups;
    left = runs_of_group;
  }
  if (i == n) return;
  const int64_t count = n - i;
  const __m512i words = _mm512_maskz_loadu_epi8(~__mmask64{0} >> (kFours - count) / 2, packed + i / 2);
  const __mmask32 kept = ~__mmask32{0} >> (kWords - count / kNibblesOfWord);
  int4_in_fours<kGroups>(row, g, count / row.group_size, words, kept, out + i);
}

struct Int4InFours {
  using Operand = uint16_t;
  static void load(const Int4Row& row, int64_t begin, int64_t n, uint16_t* out) {
    if (begin % kFours == 0) {
      if (row.group_size % kFours == 0) return int4_row_in_fours</*kGroups=*/1>(row, begin, n, row.group_size / kFours, out);
      if (row.group_size == 64) return int4_row_in_fours</*kGroups=*/2>(row, begin, n, 1, out);
      if (row.group_size == 32) return int4_row_in_fours</*kGroups=*/4>(row, begin, n, 1, out);
    }
    for (int64_t i = 0; i < n; i += kFours) {
      const int64_t count = n - i < kFours ? n - i : kFours;
      uint16_t values[kFours];
      dequantize_int4_as(row, begin + i, count, values);
      pad_with_zeros(values, count);
      lay_in_fours(values, kFours, out + i);
    }
  }
};

constexpr GemmInt4 kGemmInt4Bf16{.shape = kShapeAmx<DotBf16, RowsInFours>,
                                 .pack_w = pack_int4_rows<Int4InFours, kKCAmx<DotBf16>>,
                                 .macro_kernel = macro_kernel_amx<DotBf16>,
                                 .add_group_terms = add_group_terms_amx};

}  // namespace
}  // namespace aoext::cpu
