// int8 by int8 and int4 by int8 for NEON's instruction sets, exact: bytes as they lie, by what products_i8_<it>.inc.h multiplies.
#pragma once

#include "cpu/kernels/gemm_segments.inc.h"

namespace aoext::cpu {
namespace {

constexpr bool kOneStream = false;

inline int8x16_t load_i8(const int8_t* p) { return load<int8x16_t>(p); }

struct RowsAsI8 {
  using Operand = int8_t;
  static void load(Element, const void* source, int64_t n, int8_t* out) {
    memcpy(out, source, static_cast<size_t>(n));
    pad_with_zeros(out, n);
  }
};

template <int64_t kKC>
constexpr Gemm8Bit kGemmI8{.shape = {.operand_bytes = sizeof(int8_t), .NC = kNC, .KC = kKC, .pack_x = pack_x_rows<RowsAsI8>},
                           .pack_w = pack_8bit_rows<RowsAsI8, kKC>,
                           .macro_kernel = macro_kernel<MultiplyI8, kKC>};

namespace segments {

// Nibbles as signed bytes, in the order of Nibbles.
struct SignedNibbles {
  static constexpr int kWords = 2;
  static constexpr float kOffset = 0;
  static void load(U32 words, U32 (&out)[kWords]) {
    const int8x16_t bytes = (int8x16_t)words;
    out[0] = (U32)vshrq_n_s8(vshlq_n_s8(bytes, 4), 4);
    out[1] = (U32)vshrq_n_s8(bytes, 4);
  }
};

void pack_i8(Element, const void* source, const BlockRows& rows, int64_t, int64_t, int64_t n, void* out) {
  pack_words<Words>(static_cast<const char*>(source), rows, n, out);
}

constexpr GemmSegments kGemmSegmentsI8{.shape = shape_of<DotI8>(pack_x_rows<RowsAsI8>),
                                       .block_bytes = kBlockBytes,
                                       .pack_w = pack_i8,
                                       .macro_kernel = macro_kernel_blocks<DotI8, /*kStarts=*/false>};

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/gemv_i8.inc.h"
