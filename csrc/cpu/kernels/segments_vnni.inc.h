// int8 for gemm_segments.inc.h where there is an instruction for unsigned by signed bytes: dot_bytes, in vectors_avx512.inc.h and
// limb_sums_avxvnni.inc.h.
#pragma once

#include "cpu/kernels/gemm_segments.inc.h"

namespace aoext::cpu {
namespace {
namespace segments {

// w unsigned.
struct DotNibbles {
  using Operand = int8_t;
  using Sums = I32;
  using Total = I32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 4;
  static Sums add(Sums sums, U32 w, U32 x) { return dot_bytes(sums, w, x); }
};

// x unsigned.
struct DotI8 {
  using Operand = int8_t;
  using Sums = I32;
  using Total = I32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 4;
  static Sums add(Sums sums, U32 w, U32 x) { return dot_bytes(sums, x, w); }
};

constexpr int64_t kLeastSegment = 8;
constexpr int64_t kMostStarts = kKC<DotI8> / kLeastSegment + 1;
constexpr uint32_t kTops = 0x80808080u;  // 128 in each byte

void pack_i8(Element, const void* source, const BlockRows& rows, int64_t segment, int64_t begin, int64_t n, void* out) {
  pack_words<Words>(static_cast<const char*>(source), rows, n, out);
  char* const starts = static_cast<char*>(out) + kBlockBytes;
  int64_t i = 0;
  for (int64_t k = 0, end = segment - begin % segment; k < n; k = end, end += segment, ++i) {
    if (end > n) end = n;
    for (int64_t channel = 0; channel < kPanel; channel += kFloats) {
      I32 sums = {};
      for (int64_t word = k / kWord; word < (end + kWord - 1) / kWord; ++word)
        sums = dot_bytes(sums, U32{} + kTops, load<U32>(static_cast<char*>(out) + word * kWordOfPanel + channel * kWord));
      store(starts + (i * kPanel + channel) * kWord, -sums);
    }
  }
}

void pack_x_i8(Element, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  const uint8_t* const in = static_cast<const uint8_t*>(source);
  uint8_t* const to = static_cast<uint8_t*>(out);
  for (int64_t k = 0; k < n; ++k) to[k] = in[k] ^ 0x80;
  pad_with_zeros(to, n);
}

constexpr GemmSegments kGemmSegmentsI8{.shape = shape_of<DotI8>(pack_x_i8),
                                       .block_bytes = kBlockBytes + kMostStarts * kWordOfPanel,
                                       .pack_w = pack_i8,
                                       .macro_kernel = macro_kernel_blocks<DotI8, /*kStarts=*/true>};

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
