// gemm with lanes along N, whose sums of segments of k meet scales in float32:
//
//   acc[m][n] += Σ over segments of x_scale[segment][m] · w_scale[segment][n] · Σ x[m][k] · w[n][k]
//
// of int8 and float8 with a scale a block on both sides, and of int4 by int8, whose groups have no x_scale but a zero point.
//
// A lane is an output channel: a vector has a word, 4 bytes of k, of each of kFloats rows of w, and meets the same word of a row
// of x in all lanes, so that nothing is added up over lanes. A packed block is NC = 32 output channels by KC = 512 bytes, 16 KB,
// which stay in the first cache while x comes from the second. The micro-kernel takes up to kMR rows of x by two vectors of w:
// its sums are enough that none waits for the one before it. A segment of 32 int8 is 8 words: 16 products of a row of x, after
// which its two sums are converted and scaled.
//
// An instruction set brings its Dots (segments_<it>.inc.h): what multiplies a word of w by one of x.
//
//   using Operand                          what a word has, of w and of x
//   using Sums, Total                      of one run of words, and of a segment: I32 or F32
//   static constexpr int64_t kRun          words that Sums holds exactly; 0: as many as a Total, which it is
//   static constexpr int kUnroll           words of a step, where kRun is 0: more than one where sums cannot be reordered
//   static Sums add(Sums, U32 w, U32 x)
//   static Total total(Sums)
//   static Sums add_lane<i>(Sums, U32 w, U32 x)   where kRun is 0 and there is an instruction: by word i of kFloats words of x
//
// Groups of bytes that vpdpbusd takes as unsigned are 128 more than they stand for: x where w is int8, so that what is too much
// depends on w alone and its sums, which start with it, stand behind the packed block.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {
namespace segments {

constexpr int64_t kWord = 4, kBlockRow = 512;     // bytes
constexpr int64_t kWordOfPanel = kPanel * kWord;  // of a block: a word of each channel
constexpr int kVectors = 2;                       // of w at once
constexpr int64_t kVector = kFloats * kWord;      // bytes
constexpr int64_t kBlockBytes = kPanel * kBlockRow;

template <class Dot>
constexpr int64_t kOfWord = kWord / static_cast<int64_t>(sizeof(typename Dot::Operand));
template <class Dot>
constexpr int64_t kKC = kBlockRow / static_cast<int64_t>(sizeof(typename Dot::Operand));

// ---- Dots that every instruction set has ---------------------------------------------------------------

// Serves int8 too: a block's sums are below 2²⁴.
struct DotF32 {
  using Operand = float;
  using Sums = F32;
  using Total = F32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 1;
  static Sums add(Sums sums, U32 w, U32 x) { return multiply_add((F32)w, (F32)x, sums); }
};
static_assert(kKC<DotF32> * 128 * 128 <= 1 << 24);

inline F32 as_floats(F32 v) { return v; }
inline F32 as_floats(I32 v) { return __builtin_convertvector(v, F32); }

// ---- micro-kernel, macro-kernel ------------------------------------------------------------------------

template <class Dot>
concept TakesLanes = requires(typename Dot::Sums sums, U32 words) { Dot::template add_lane<0>(sums, words, words); };

// kFloats words of kRows rows of x, which are loaded together.
template <class Dot, int kRows>
inline void add_lanes(const char* w, const char* x, typename Dot::Total (&totals)[kRows][kVectors]) {
  static_assert(sizeof(typename Dot::Sums) == 4 * kWord, "of four words, which follow one by one");
  U32 xk[kRows];
  for (int m = 0; m < kRows; ++m) xk[m] = load<U32>(x + m * kBlockRow);
  const auto add = [&](auto lane) AOEXT_INLINE {
    constexpr int kLane = decltype(lane)::count;
    for (int v = 0; v < kVectors; ++v) {
      const U32 wk = load<U32>(w + kLane * kWordOfPanel + v * kVector);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) totals[m][v] = Dot::template add_lane<kLane>(totals[m][v], wk, xk[m]);
    }
  };
  add(Rows<0>());
  add(Rows<1>());
  add(Rows<2>());
  add(Rows<3>());
}

// Words [begin, end) of kRows rows of x, by two vectors of a block.
template <class Dot, int kRows>
inline void micro_kernel(const char* w, const char* x, int64_t begin, int64_t end,
                         typename Dot::Total (&totals)[kRows][kVectors]) {
  const auto add = [&](int64_t word, auto& to) AOEXT_INLINE {
    U32 wk[kVectors];
    for (int v = 0; v < kVectors; ++v) wk[v] = load<U32>(w + word * kWordOfPanel + v * kVector);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      uint32_t xk;
      memcpy(&xk, x + m * kBlockRow + word * kWord, sizeof xk);
      const U32 all = U32{} + xk;
      for (int v = 0; v < kVectors; ++v) to[m][v] = Dot::add(to[m][v], wk[v], all);
    }
  };
  if constexpr (Dot::kRun == 0) {
    int64_t word = begin;
    if constexpr (TakesLanes<Dot>)
      for (; word + kFloats <= end; word += kFloats) add_lanes<Dot>(w + word * kWordOfPanel, x + word * kWord, totals);
    for (; word + Dot::kUnroll <= end; word += Dot::kUnroll)
#pragma GCC unroll 4
      for (int i = 0; i < Dot::kUnroll; ++i) add(word + i, totals);
#pragma GCC unroll 1
    for (; word < end; ++word) add(word, totals);
  } else {
    for (int64_t word = begin; word < end;) {
      typename Dot::Sums sums[kRows][kVectors] = {};
      // Not unrolled: a compiler would add products up in another order, for which registers do not suffice.
      const int64_t stop = end - word < Dot::kRun ? end : word + Dot::kRun;
#pragma GCC unroll 1
      for (; word < stop; ++word) add(word, sums);
      for (int m = 0; m < kRows; ++m)
        for (int v = 0; v < kVectors; ++v) totals[m][v] += Dot::total(sums[m][v]);
    }
  }
}

// Rows of x at once: what registers hold.
constexpr int kMR = kRegisters >= 32 ? 6 : kFloats >= 8 ? 4 : 3;

template <int kMost, class Body>
inline void with_rows(int64_t count, const Body& body) {
  if constexpr (kMost > 1)
    if (count < kMost) return with_rows<kMost - 1>(count, body);
  body(Rows<kMost>());
}

// M rows of x in parts as even as can be: body(Rows<count>, first).
template <class Body>
inline void each_mr(int64_t M, const Body& body) {
  for (int64_t m = 0, parts = (M + kMR - 1) / kMR; parts > 0; --parts) {
    const int64_t count = (M - m + parts - 1) / parts;
    with_rows<kMR>(count, [&](auto rows) AOEXT_INLINE { body(rows, m); });
    m += count;
  }
}

// Elements [begin, begin + n) of k. Scales say what a segment's totals start with and what becomes of them.
template <class Dot, class Scales>
inline void macro_kernel(const char* w, const char* x, const Scales& scales, int64_t segment, int64_t M, int64_t begin, int64_t n,
                         void* acc) {
  const int64_t first = begin / segment, begun = begin % segment;
  each_mr(M, [&](auto count, int64_t m) AOEXT_INLINE {
    constexpr int kCount = decltype(count)::count;
    for (int64_t channel = 0; channel < kPanel; channel += kVectors * kFloats) {
      char* const to = static_cast<char*>(acc) + (m * kPanel + channel) * kWord;
      F32 sums[kCount][kVectors];
      for (int r = 0; r < kCount; ++r)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = load<F32>(to + r * kWordOfPanel + v * kVector);
      int64_t s = first;
      for (int64_t k = 0, end = segment - begun; k < n; k = end, end += segment, ++s) {
        if (end > n) end = n;
        typename Dot::Total totals[kCount][kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const typename Dot::Total start = scales.start(s - first, channel + v * kFloats);
          for (int r = 0; r < kCount; ++r) totals[r][v] = start;
        }
        micro_kernel<Dot, kCount>(w + channel * kWord, x + m * kBlockRow, k / kOfWord<Dot>,
                                  (end + kOfWord<Dot> - 1) / kOfWord<Dot>, totals);
        scales.template apply<kCount>(s, m, channel, k > 0 || begun == 0, totals, sums);
      }
      for (int r = 0; r < kCount; ++r)
        for (int v = 0; v < kVectors; ++v) store(to + r * kWordOfPanel + v * kVector, sums[r][v]);
    }
  });
}

// ---- scales --------------------------------------------------------------------------------------------

// int4's groups: a scale, and the zero point by the sum of x.
template <class Total>
struct OfGroups {
  const float *scale, *zero_point, *x_sums;
  int64_t x_stride;

  Total start(int64_t, int64_t) const { return Total{}; }
  template <int kCount>
  void apply(int64_t group, int64_t m, int64_t channel, bool starts, const Total (&totals)[kCount][kVectors],
             F32 (&sums)[kCount][kVectors]) const {
    const float* const of_x = x_sums + group * x_stride + m;
    F32 s[kVectors], z[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = group * kPanel + channel + v * kFloats;
      s[v] = load<F32>(scale + at);
      z[v] = starts ? load<F32>(zero_point + at) : F32{};
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F32 x_sum = broadcast(of_x[r]);
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = multiply_add(s[v], as_floats(totals[r][v]), multiply_add(z[v], x_sum, sums[r][v]));
    }
  }
};

// Blocks of both operands; starts are a block's own, or null.
template <class Total>
struct OfBlocks {
  const SegmentScales& of;
  const char* starts;  // [segments, kPanel]

  Total start(int64_t i, int64_t channel) const {
    return starts == nullptr ? Total{} : load<Total>(starts + (i * kPanel + channel) * kWord);
  }
  template <int kCount>
  void apply(int64_t segment, int64_t m, int64_t channel, bool, const Total (&totals)[kCount][kVectors],
             F32 (&sums)[kCount][kVectors]) const {
    const auto scale_of = [&](int64_t segments) { return segments == 1 ? segment : segment / segments; };
    const float* const of_x = of.x + m * of.x_stride + scale_of(of.segments_of_x);
    const float* const of_w = of.w + scale_of(of.segments_of_w) * kPanel + channel;
    F32 s[kVectors];
    for (int v = 0; v < kVectors; ++v) s[v] = load<F32>(of_w + v * kFloats);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F32 x_scale = broadcast(of_x[r * of.x_stride]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(as_floats(totals[r][v]) * x_scale, s[v], sums[r][v]);
    }
  }
};

template <class Dot>
void macro_kernel_int4(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                       int64_t begin, int64_t n, void* acc) {
  const OfGroups<typename Dot::Total> scales{first.scale, first.zero_point, x_sums, x_stride};
  macro_kernel<Dot>(static_cast<const char*>(w), static_cast<const char*>(x), scales, first.group_size, M, begin, n, acc);
}

template <class Dot, bool kStarts>
void macro_kernel_blocks(const void* w, const void* x, const SegmentScales& scales, int64_t M, int64_t begin, int64_t n,
                         void* acc) {
  const char* const block = static_cast<const char*>(w);
  const OfBlocks<typename Dot::Total> of_blocks{scales, kStarts ? block + kBlockBytes : nullptr};
  macro_kernel<Dot>(block, static_cast<const char*>(x), of_blocks, scales.segment, M, begin, n, acc);
}

// ---- packing -------------------------------------------------------------------------------------------

// `bytes` of each of kFloats rows, as words, kFloats of them at a time: each(words, first). What is missing is zeros.
template <class Each>
inline void each_words(const char* const (&rows)[kFloats], int64_t bytes, const Each& each) {
  for (int64_t at = 0; at < bytes; at += kVector) {
    U32 words[kFloats];
    if (bytes - at >= kVector) {
      for (int i = 0; i < kFloats; ++i) words[i] = load<U32>(rows[i] + at);
    } else {
      for (int i = 0; i < kFloats; ++i) {
        words[i] = U32{};
        memcpy(&words[i], rows[i] + at, static_cast<size_t>(bytes - at));
      }
    }
    transpose_words(words);
    each(words, at / kWord);
  }
}

// A block whose rows are words of memory, `bytes` of each: Loader makes kWords words of one. The last row stands for those that
// don't exist.
template <class Loader>
inline void pack_words(const char* source, const BlockRows& block, int64_t bytes, void* out) {
  for (int64_t channel = 0; channel < kPanel; channel += kFloats) {
    const char *rows[kFloats], *next[kFloats];
    for (int i = 0; i < kFloats; ++i) {
      const int64_t row = channel + i < block.count ? channel + i : block.count - 1;
      rows[i] = source + row * block.stride;
      next[i] = block.next + row * block.next_stride;
    }
    char* const to = static_cast<char*>(out) + channel * kWord;
    each_words(rows, bytes, [&](const U32(&words)[kFloats], int64_t first) AOEXT_INLINE {
#pragma GCC unroll 16
      for (int i = 0; i < kFloats; ++i) {
        U32 made[Loader::kWords];
        Loader::load(words[i], made);
        for (int j = 0; j < Loader::kWords; ++j) store(to + ((first + i) * Loader::kWords + j) * kWordOfPanel, made[j]);
        if (first % (kLine / kWord) == 0 && first * kWord < block.next_bytes) fetch_weights(next[i] + first * kWord);
      }
    });
  }
}

struct Words {
  static constexpr int kWords = 1;
  static void load(U32 words, U32 (&out)[kWords]) { out[0] = words; }
};

// A block whose rows become operands one by one, in the first cache: load(row, out).
template <class Dot, class Load>
inline void pack_operands(const BlockRows& block, int64_t n, void* out, const Load& load) {
  alignas(kLine) typename Dot::Operand operands[kFloats][kKC<Dot>];
  const char* rows[kFloats];
  for (int i = 0; i < kFloats; ++i) rows[i] = reinterpret_cast<const char*>(operands[i]);
  for (int64_t channel = 0; channel < kPanel; channel += kFloats) {
    for (int i = 0; i < kFloats; ++i) {
      const int64_t row = channel + i < block.count ? channel + i : block.count - 1;
      load(row, operands[i]);
      for (int64_t j = 0; j < block.next_bytes; j += kLine) fetch_weights(block.next + row * block.next_stride + j);
    }
    char* const to = static_cast<char*>(out) + channel * kWord;
    const int64_t bytes = (n + kPad - 1) / kPad * kPad * static_cast<int64_t>(sizeof(typename Dot::Operand));
    each_words(rows, bytes, [&](const U32(&words)[kFloats], int64_t first) AOEXT_INLINE {
#pragma GCC unroll 16
      for (int i = 0; i < kFloats; ++i) store(to + (first + i) * kWordOfPanel, words[i]);
    });
  }
}

// 8-bit values as RowLoader's operands (gemm.inc.h).
template <class Dot, class RowLoader>
void pack_8bit(Element from, const void* source, const BlockRows& rows, int64_t, int64_t, int64_t n, void* out) {
  pack_operands<Dot>(rows, n, out, [&](int64_t row, typename Dot::Operand* to) {
    RowLoader::load(from, static_cast<const char*>(source) + row * rows.stride, n, to);
  });
}

// int4 as floats.
void pack_codes_f32(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  constexpr float kOne = 1, kNothing = 0;
  constexpr int64_t kAll = int64_t{1} << 48;  // one group
  const int64_t whole = n / kNibbles * kNibbles;
  pack_operands<DotF32>(rows, n, out, [&](int64_t row, float* to) {
    const uint8_t* const packed = first.packed + row * rows.stride;
    dequantize_int4({packed, &kOne, &kNothing, kAll}, begin, whole, Element::fp32, to);
    // The last, one by one, for a row may end there: groups of an odd length are not read by vectors.
    if (whole < n) dequantize_int4({packed, &kOne, &kNothing, kAll + 1}, begin + whole, n - whole, Element::fp32, to + whole);
    pad_with_zeros(to, n);
  });
}

// Nibbles as unsigned bytes, q + 8: of 8 weights the even ones, then the odd ones, and so has x.
struct Nibbles {
  static constexpr int kWords = 2;
  static constexpr float kOffset = 8;
  static void load(U32 words, U32 (&out)[kWords]) {
    words ^= 0x88888888u;
    out[0] = words & 0x0f0f0f0fu;
    out[1] = words >> 4 & 0x0f0f0f0fu;
  }
};

template <class Loader>
void pack_nibbles(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_words<Loader>(reinterpret_cast<const char*>(first.packed) + begin / 2, rows, n / 2, out);
}

[[maybe_unused]] void pack_x_nibbles(Element, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  using Eights = uint64_t AOEXT_VECTOR(kVector);
  const auto low_bytes = [](Eights v) {
    v &= 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (v | v >> 16) & 0xffffffffu;
  };
  const auto ordered = [&](Eights v) { return low_bytes(v) | low_bytes(v >> 8) << 32; };
  const char* const in = static_cast<const char*>(source);
  char* const to = static_cast<char*>(out);
  int64_t k = 0;
  for (; k + kVector <= n; k += kVector) store(to + k, ordered(load<Eights>(in + k)));
  if (k == n) return;
  Eights rest = {};
  memcpy(&rest, in + k, static_cast<size_t>(n - k));
  store(to + k, ordered(rest));
}

// ---- tables --------------------------------------------------------------------------------------------

template <class Dot>
constexpr GemmShape shape_of(decltype(GemmShape::pack_x) pack_x) {
  return {
      .operand_bytes = sizeof(typename Dot::Operand), .NC = kPanel, .KC = kKC<Dot>, .fetch_next_panel = true, .pack_x = pack_x};
}

constexpr GemmInt4Codes kGemmInt4CodesF32{
    .shape = shape_of<DotF32>(pack_x_rows<RowsAsF32>), .pack_w = pack_codes_f32, .macro_kernel = macro_kernel_int4<DotF32>};

template <class Dot, class Loader = Nibbles>  // of bytes that Loader makes by signed ones
constexpr GemmInt4Codes kGemmInt4I8{.shape = shape_of<Dot>(pack_x_nibbles),
                                    .code_offset = Loader::kOffset,
                                    .pack_w = pack_nibbles<Loader>,
                                    .macro_kernel = macro_kernel_int4<Dot>};

template <class Dot, class RowLoader>
constexpr GemmSegments kGemmSegments{.shape = shape_of<Dot>(pack_x_rows<RowLoader>),
                                     .block_bytes = kBlockBytes,
                                     .pack_w = pack_8bit<Dot, RowLoader>,
                                     .macro_kernel = macro_kernel_blocks<Dot, /*kStarts=*/false>};

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
