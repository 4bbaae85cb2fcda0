// Tiles of products with AVX-512 alone: acc[m][n] += Σ x[m][k] · w[n][k], of bfloat16 in float32 or of int8 in int32.
//
// A lane is a row of w: a vector has a word, 4 bytes of k, of each of 16 rows, and meets the same word of a row of x in all
// lanes, so that sums are vectors of y and nothing is added up over lanes. A block is 32 rows of w by 512 bytes, 16 KB, which
// stay in the first cache while x comes from the second, its rows as they lie. A step, a word of k, is 2 vectors of w and a word
// of each of up to 5 rows of x: 7 loads for 10 products. Each sum has two parts, of the even and of the odd words, so that twice
// as many are under way; results do not depend on how many rows of x there are.
//
// Rows of w lie along K, so `weights` transposes words, 64 shuffles for 16 rows by 64 bytes, as they come from memory: of int4 a
// word is 8 weights, which then become 4 words of bfloat16 by a shift and a bit operation each: 16 + (q ^ 8), exact, which the
// sums of x undo. So no weight is rounded; a group's sums meet its scale in float32. Many rows of x by short groups take words of
// q · scale + zero_point, rounded. 8-bit weights become bfloat16, exact, by tables of 128 bytes, and meet their scales when all
// is done.
//
// Subnormal operands of bfloat16 count as zero, far below its own rounding.
#pragma once

#include "cpu/kernels/bf16_avx512.inc.h"
#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kWordBytes = 4, kDepthBytes = 512;
constexpr int kBands = kTile / kFloats;
constexpr int64_t kStepBytes = kBands * kLine;  // of a block: a word of each row

struct LanesBf16 {
  using Operand = uint16_t;
  using Sums = F32;
  static Sums multiply_add(Sums sums, __m512i w, __m512i x) {
    return (F32)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x);
  }
};

// vpdpbusd multiplies unsigned by signed: w is w + 128 here, and sums start with −128 · Σx. They wrap modulo 2³² on the way and
// are right at the end, as the result fits.
struct LanesI8 {
  using Operand = int8_t;
  using Sums = I32;
  static Sums multiply_add(Sums sums, __m512i w, __m512i x) { return (I32)_mm512_dpbusd_epi32((__m512i)sums, w, x); }
};

template <class P>
constexpr int64_t kDepthOf = kDepthBytes / static_cast<int64_t>(sizeof(typename P::Operand));

// ---- products ------------------------------------------------------------------------------------------

constexpr int kMostInputs = 5, kParts = 2;

// Words [begin, end), an even number of them, of R rows of x. A part of a sum is of every other word, or of one of two limbs.
template <class P, int R, int kLimbs>
inline void add_words(const char* w, const char* x, int64_t begin, int64_t end, typename P::Sums (&sums)[R][kBands]) {
  static_assert(kParts % kLimbs == 0);
  typename P::Sums parts[kParts][R][kBands] = {};
  for (int64_t word = begin; word < end; word += kParts / kLimbs)
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = word + part / kLimbs;
      __m512i wk[kBands];
      for (int band = 0; band < kBands; ++band) wk[band] = load<__m512i>(w + at * kStepBytes + band * kLine);
#pragma GCC unroll 5
      for (int m = 0; m < R; ++m) {
        int32_t xk;
        memcpy(&xk, x + (m * kLimbs + part % kLimbs) * kDepthBytes + at * kWordBytes, sizeof xk);
        const __m512i all = _mm512_set1_epi32(xk);
        for (int band = 0; band < kBands; ++band) parts[part][m][band] = P::multiply_add(parts[part][m][band], wk[band], all);
      }
    }
  for (int m = 0; m < R; ++m)
    for (int band = 0; band < kBands; ++band) sums[m][band] = parts[0][m][band] + parts[1][m][band];
}

// M rows of x, the last ones in parts as even as can be: body(Rows<count>, first).
template <class Body>
inline void each_inputs(int64_t M, const Body& body) {
  int64_t m = 0;
  for (; M - m >= 2 * kMostInputs; m += kMostInputs) body(Rows<kMostInputs>(), m);
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
  if (M - m > kMostInputs) take((M - m + 1) / 2);
  take(M - m);
}

template <class P, int kLimbs = 1>
void multiply_lanes(const void* w, int, const void* x, int64_t M, int64_t K, void* acc) {
  const char *const block = static_cast<const char*>(w), *const inputs = static_cast<const char*>(x);
  const int64_t words = K * static_cast<int64_t>(sizeof(typename P::Operand)) / kWordBytes;
  each_inputs(M, [&](auto count, int64_t m) __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::count;
    using Sums = typename P::Sums;
    Sums sums[kCount][kBands];
    add_words<P, kCount, kLimbs>(block, inputs + m * kLimbs * kDepthBytes, 0, words, sums);
    for (int r = 0; r < kCount; ++r)
      for (int band = 0; band < kBands; ++band) {
        char* const to = static_cast<char*>(acc) + ((m + r) * kBands + band) * kLine;
        store(to, load<Sums>(to) + sums[r][band]);
      }
  });
}

// ---- blocks --------------------------------------------------------------------------------------------

// 64 bytes of each of 16 rows as 16 vectors of a word of each: two steps within lanes of 128 bits, two of these lanes.
inline void load_words(const char* const (&rows)[kFloats], int64_t at, U32 (&words)[kFloats]) {
  __m512i fours[kFloats], eights[kFloats];
#pragma GCC unroll 4
  for (int i = 0; i < kFloats; i += 4) {
    const auto row = [&](int r) { return load<__m512i>(rows[i + r] + at); };
    const __m512i a = row(0), b = row(1), c = row(2), d = row(3);
    const __m512i low[] = {_mm512_maskz_unpacklo_epi32(0xffff, a, b), _mm512_maskz_unpacklo_epi32(0xffff, c, d)};
    const __m512i high[] = {_mm512_maskz_unpackhi_epi32(0xffff, a, b), _mm512_maskz_unpackhi_epi32(0xffff, c, d)};
    fours[i] = _mm512_maskz_unpacklo_epi64(0xff, low[0], low[1]);
    fours[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, low[0], low[1]);
    fours[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, high[0], high[1]);
    fours[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, high[0], high[1]);
  }
  const auto even = [](__m512i a, __m512i b) { return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88); };
  const auto odd = [](__m512i a, __m512i b) { return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd); };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int from = i / 4 * 8 + i % 4;
    eights[from] = even(fours[from], fours[from + 4]);
    eights[from + 4] = odd(fours[from], fours[from + 4]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    words[i] = (U32)even(eights[i], eights[i + 8]);
    words[i + 8] = (U32)odd(eights[i], eights[i + 8]);
  }
}

// A block of the words of n bytes of each row, each of which unpack(words, its place in the row, band, to) makes kWords of,
// kStepBytes apart; zeros follow up to a multiple of kMultiple, and the last row stands for those that don't exist. What is next
// is fetched a line at a time.
template <int kWords, int64_t kMultiple, class Unpack>
inline void each_words(const void* source, const BlockRows& block, int64_t n, void* out, const Unpack& unpack) {
  static_assert(kMultiple % kLine == 0);
  for (int band = 0; band < kBands; ++band) {
    const char *rows[kFloats], *next[kFloats];
    for (int i = 0; i < kFloats; ++i) {
      const int64_t row = band * kFloats + i < block.count ? band * kFloats + i : block.count - 1;
      rows[i] = static_cast<const char*>(source) + row * block.stride;
      next[i] = block.next + row * block.next_stride;
    }
    char* to = static_cast<char*>(out) + band * kLine;
    for (int64_t at = 0; at < n || at % kMultiple != 0; at += kLine) {
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
        unpack(words[i], at / kWordBytes + i, band, to);
        to += kWords * kStepBytes;
        if (at < block.next_bytes) __builtin_prefetch(next[i] + at);
      }
    }
  }
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
inline void weights_in_lanes(const void* source, const BlockRows& rows, int64_t n, void* out) {
  each_words<2, kPad>(source, rows, n, out, [](U32 words, int64_t, int, char* to) {
    __m512i halves[2];
    halve<kType>(words, halves);
    store(to, halves[0]);
    store(to + kStepBytes, halves[1]);
  });
}

void weights_in_lanes(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  with_8bit_type(from, [&](auto of) { weights_in_lanes<decltype(of)::type>(source, rows, n, out); });
}

void bytes_in_lanes(Element, const void* source, const BlockRows& rows, int64_t n, void* out) {
  each_words<1, kPad>(source, rows, n, out, [](U32 words, int64_t, int, char* to) { store(to, words ^ 0x80808080u); });
}

void inputs_i8(Element, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t* start) {
  memcpy(out, source, static_cast<size_t>(n));
  fill_up(static_cast<int8_t*>(out), n);
  uint32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<uint32_t>(static_cast<const int8_t*>(source)[i]);
  *start -= 128 * sum;
}

constexpr Tiles kLanesI8{.operand_bytes = sizeof(int8_t),
                         .rows = kTile,
                         .depth = kDepthOf<LanesI8>,
                         .inputs = inputs_i8,
                         .weights = bytes_in_lanes,
                         .multiply = multiply_lanes<LanesI8>,
                         .in_order = true};

}  // namespace
}  // namespace aoext::cpu
