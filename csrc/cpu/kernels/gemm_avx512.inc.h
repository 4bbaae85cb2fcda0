// gemm with lanes along N, by AVX-512 alone: acc[m][n] += Σ x[m][k] · w[n][k], of bfloat16 in float32 or of int8 in int32.
//
// A lane is an output channel: a vector has a word, 4 bytes of k, of each of 16 rows of w, and meets the same word of a row of x
// in all lanes, so that sums are vectors of y and nothing is added up over lanes. A packed block is NC = 32 output channels by KC
// = 512 bytes, 16 KB, which stay in the first cache while x comes from the second, its rows as they lie. A step of the
// micro-kernel, a word of k, is 2 vectors of w and a word of each of up to MR = 5 rows of x: 7 loads for 10 products. Each sum
// has two parts, of the even and of the odd words, so that twice as many are under way; results do not depend on how many rows of
// x there are.
//
// Rows of w lie along K, so packing transposes words, 64 shuffles for 16 rows by 64 bytes, as they come from memory. A format
// comes in as a loader, which unpacks a word of each of 16 rows in registers:
//
//   static constexpr int kWords           words of operands that it makes of one word of the weight
//   static constexpr int64_t kMultiple    bytes up to a multiple of which rows are filled up with zeros
//   void operator()(U32 words, int64_t word, int vector, char* to) const
//                                         stores kWords vectors, kStepBytes apart, of word number `word` of the 16 rows of
//                                         `vector`
//
// 8-bit weights become bfloat16, exact, by tables of 128 bytes, and meet their scales when all is done. int4:
// gemm_int4_avx512.inc.h. A new format (8 bits with a scale a block, codes of a table of 16 values) is one more loader and a
// table that packs with it.
//
// Subnormal operands of bfloat16 count as zero, far below its own rounding.
#pragma once

#include "cpu/kernels/bf16_avx512.inc.h"
#include "cpu/kernels/bf16_operands.inc.h"
#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kWordBytes = 4, kKCBytes = 512;
constexpr int64_t kStepBytes = kPanelVectors * kLine;  // of a block: a word of each row

struct DotBf16 {
  using Operand = uint16_t;
  using Sums = F32;
  static Sums multiply_add(Sums sums, __m512i w, __m512i x) {
    return (F32)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x);
  }
};

// vpdpbusd multiplies unsigned by signed: w is w + 128 here, and sums start with −128 · Σx. They wrap modulo 2³² on the way and
// are right at the end, as the result fits.
struct DotI8 {
  using Operand = int8_t;
  using Sums = I32;
  static Sums multiply_add(Sums sums, __m512i w, __m512i x) { return (I32)_mm512_dpbusd_epi32((__m512i)sums, w, x); }
};

template <class Dot>
constexpr int64_t kKCOf = kKCBytes / static_cast<int64_t>(sizeof(typename Dot::Operand));

// ---- micro-kernel, macro-kernel ------------------------------------------------------------------------------------------

constexpr int kMR = 5, kParts = 2;

// Words [begin, end), an even number of them, of kRows rows of x. A part of a sum is of every other word, or of one of two limbs.
template <class Dot, int kRows, int kLimbs>
inline void micro_kernel_channels(const char* w, const char* x, int64_t begin, int64_t end,
                                  typename Dot::Sums (&sums)[kRows][kPanelVectors]) {
  static_assert(kParts % kLimbs == 0);
  typename Dot::Sums parts[kParts][kRows][kPanelVectors] = {};
  for (int64_t word = begin; word < end; word += kParts / kLimbs)
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = word + part / kLimbs;
      __m512i wk[kPanelVectors];
      for (int vector = 0; vector < kPanelVectors; ++vector) wk[vector] = load<__m512i>(w + at * kStepBytes + vector * kLine);
#pragma GCC unroll 5
      for (int m = 0; m < kRows; ++m) {
        int32_t xk;
        memcpy(&xk, x + (m * kLimbs + part % kLimbs) * kKCBytes + at * kWordBytes, sizeof xk);
        const __m512i all = _mm512_set1_epi32(xk);
        for (int vector = 0; vector < kPanelVectors; ++vector)
          parts[part][m][vector] = Dot::multiply_add(parts[part][m][vector], wk[vector], all);
      }
    }
  for (int m = 0; m < kRows; ++m)
    for (int vector = 0; vector < kPanelVectors; ++vector) sums[m][vector] = parts[0][m][vector] + parts[1][m][vector];
}

// M rows of x, the last ones in parts as even as can be: body(Rows<count>, first).
template <class Body>
inline void each_mr(int64_t M, const Body& body) {
  int64_t m = 0;
  for (; M - m >= 2 * kMR; m += kMR) body(Rows<kMR>(), m);
  const auto take = [&](int64_t count) {
    switch (count) {
      case 1: body(Rows<1>(), m); break;
      case 2: body(Rows<2>(), m); break;
      case 3: body(Rows<3>(), m); break;
      case 4: body(Rows<4>(), m); break;
      default: body(Rows<5>(), m); break;
    }
    m += count;
  };
  if (M - m > kMR) take((M - m + 1) / 2);
  take(M - m);
}

template <class Dot, int kLimbs>
void macro_kernel_channels(const void* w, int, const void* x, int64_t M, int64_t K, void* acc) {
  const char *const block = static_cast<const char*>(w), *const rows = static_cast<const char*>(x);
  const int64_t words = K * static_cast<int64_t>(sizeof(typename Dot::Operand)) / kWordBytes;
  each_mr(M, [&](auto count, int64_t m) AOEXT_INLINE {
    constexpr int kCount = decltype(count)::count;
    using Sums = typename Dot::Sums;
    Sums sums[kCount][kPanelVectors];
    micro_kernel_channels<Dot, kCount, kLimbs>(block, rows + m * kLimbs * kKCBytes, 0, words, sums);
    for (int r = 0; r < kCount; ++r)
      for (int vector = 0; vector < kPanelVectors; ++vector) {
        char* const to = static_cast<char*>(acc) + ((m + r) * kPanelVectors + vector) * kLine;
        store(to, load<Sums>(to) + sums[r][vector]);
      }
  });
}

// ---- blocks --------------------------------------------------------------------------------------------

// A block of the words of n bytes of each row, unpacked; zeros follow up to a multiple of Loader::kMultiple bytes, and the last
// row stands for those that don't exist. What is next is fetched a line at a time.
template <class Loader>
inline void pack_words(const void* source, const BlockRows& block, int64_t n, void* out, const Loader& loader) {
  static_assert(Loader::kMultiple % kLine == 0);
  for (int vector = 0; vector < kPanelVectors; ++vector) {
    const char *rows[kFloats], *next[kFloats];
    for (int i = 0; i < kFloats; ++i) {
      const int64_t row = vector * kFloats + i < block.count ? vector * kFloats + i : block.count - 1;
      rows[i] = static_cast<const char*>(source) + row * block.stride;
      next[i] = block.next + row * block.next_stride;
    }
    char* to = static_cast<char*>(out) + vector * kLine;
    for (int64_t at = 0; at < n || at % Loader::kMultiple != 0; at += kLine) {
      alignas(kLine) char rest[kFloats][kLine];
      if (n - at < kLine) {
        memset(rest, 0, sizeof rest);
        for (int i = 0; i < kFloats; ++i)
          rows[i] = static_cast<const char*>(n > at ? memcpy(rest[i], rows[i] + at, static_cast<size_t>(n - at)) : rest[i]) - at;
      }
      U32 words[kFloats];
      load_words(rows, at, words);
#pragma GCC unroll 16
      for (int i = 0; i < kFloats; ++i) {
        loader(words[i], at / kWordBytes + i, vector, to);
        to += Loader::kWords * kStepBytes;
        if (at < block.next_bytes) fetch_weights(next[i] + at);
      }
    }
  }
}

template <Element kType>
struct WordsOf8Bit {
  static constexpr int kWords = 2;
  static constexpr int64_t kMultiple = kPad;
  void operator()(U32 words, int64_t, int, char* to) const {
    __m512i halves[2];
    halve<kType>(words, halves);
    store(to, halves[0]);
    store(to + kStepBytes, halves[1]);
  }
};

void pack_8bit(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  with_8bit_type(from, [&](auto of) { pack_words(source, rows, n, out, WordsOf8Bit<decltype(of)::type>()); });
}

// As DotI8 takes them.
struct WordsOfI8 {
  static constexpr int kWords = 1;
  static constexpr int64_t kMultiple = kPad;
  void operator()(U32 words, int64_t, int, char* to) const { store(to, words ^ 0x80808080u); }
};

void pack_i8(Element, const void* source, const BlockRows& rows, int64_t n, void* out) {
  pack_words(source, rows, n, out, WordsOfI8());
}

void pack_x_i8(Element, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t* start) {
  memcpy(out, source, static_cast<size_t>(n));
  pad_with_zeros(static_cast<int8_t*>(out), n);
  uint32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<uint32_t>(static_cast<const int8_t*>(source)[i]);
  *start -= 128 * sum;
}

// ---- tables --------------------------------------------------------------------------------------------

constexpr GemmShape kShapeBf16{.operand_bytes = sizeof(uint16_t),
                               .NC = kPanel,
                               .KC = kKCOf<DotBf16>,
                               .fetch_next_panel = true,
                               .pack_x = pack_x_rows<RowsAsBf16>};

constexpr Gemm8Bit kGemmBf16{.shape = kShapeBf16, .pack_w = pack_8bit, .macro_kernel = macro_kernel_channels<DotBf16, kOneLimb>};

constexpr Gemm8Bit kGemmI8{
    .shape = {.operand_bytes = sizeof(int8_t), .NC = kPanel, .KC = kKCOf<DotI8>, .fetch_next_panel = true, .pack_x = pack_x_i8},
    .pack_w = pack_i8,
    .macro_kernel = macro_kernel_channels<DotI8, kOneLimb>};

}  // namespace
}  // namespace aoext::cpu
