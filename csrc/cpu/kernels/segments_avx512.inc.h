// bfloat16 for gemm_segments.inc.h.
#pragma once

#include "cpu/kernels/bf16_avx512.inc.h"
#include "cpu/kernels/segments_vnni.inc.h"

namespace aoext::cpu {
namespace {
namespace segments {

struct DotBf16 {
  using Operand = uint16_t;
  using Sums = F32;
  using Total = F32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 4;
  static Sums add(Sums sums, U32 w, U32 x) { return (F32)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x); }
};

// A loader of float8, which may meet int8.
template <Element kType>
struct Halves {
  static constexpr int kWords = 2;
  static void load(U32 words, U32 (&out)[kWords]) {
    __m512i halves[kWords];
    halve<kType>(words, halves);
    for (int i = 0; i < kWords; ++i) out[i] = (U32)halves[i];
  }
};

void pack_8bit_bf16(Element from, const void* source, const BlockRows& rows, int64_t segment, int64_t begin, int64_t n,
                    void* out) {
  const char* const in = static_cast<const char*>(source);
  if (from == Element::int8) return pack_8bit<DotBf16, RowsAsBf16>(from, source, rows, segment, begin, n, out);
  if (from == Element::e4m3) return pack_words<Halves<Element::e4m3>>(in, rows, n, out);
  pack_words<Halves<Element::e5m2>>(in, rows, n, out);
}

constexpr GemmSegments kGemmSegmentsBf16{.shape = shape_of<DotBf16>(pack_x_rows<RowsAsBf16>),
                                         .block_bytes = kBlockBytes,
                                         .pack_w = pack_8bit_bf16,
                                         .macro_kernel = macro_kernel_blocks<DotBf16, /*kStarts=*/false>};

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
