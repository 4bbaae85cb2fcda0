// Bytes for gemm_mmla.inc.h: smmla of int8 by int8 and of int4 by int8, exact, and both formats of 8 bits by segments of k that
// have scales on either side, float8 by bfmmla.
#pragma once

#include "cpu/kernels/gemm_bf16_mmla.inc.h"
#include "cpu/kernels/gemm_i8_neon.inc.h"

namespace aoext::cpu {
namespace {
namespace mmla {

struct DotI8 {
  using Operand = int8_t;
  using Sums = I32;
  static Sums multiply_add(Sums sums, uint8x16_t x, uint8x16_t w) {
    return (Sums)vmmlaq_s32((int32x4_t)sums, vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(w));
  }
};

// ---- scales of both operands ---------------------------------------------------------------------------

struct OfBlocks {
  const SegmentScales& of;
  int64_t M;

  template <int kRows, int kChannels, class Sums>
  void apply(int64_t segment, int64_t m, int64_t channel, bool, const Sums (&sums)[kRows][kChannels], float* to) const {
    const auto scale_of = [&](int64_t segments) { return segments == 1 ? segment : segment / segments; };
    const float* const of_x = of.x + scale_of(of.segments_of_x);
    const float* const of_w = of.w + scale_of(of.segments_of_w) * kPanel + channel;
    F32 w[kChannels], x[kRows];
    for (int c = 0; c < kChannels; ++c) w[c] = of_channels(of_w + 2 * c);
    for (int r = 0; r < kRows; ++r) {
      const int64_t first = m + 2 * r, second = first + 1 < M ? first + 1 : first;  // which fills up a panel
      const float two[] = {of_x[first * of.x_stride], of_x[second * of.x_stride]};
      x[r] = of_rows(two);
    }
    each_tile<kRows, kChannels>(to, [&](F32 sum, int r, int c) { return multiply_add(as_floats(sums[r][c]) * x[r], w[c], sum); });
  }
};

// Segments are of a multiple of 8 elements, or all of K, which is filled up.
template <class Dot>
void macro_kernel_blocks(const void* w, const void* x, const SegmentScales& scales, int64_t M, int64_t begin, int64_t n,
                         void* acc) {
  const auto tiles = [](int64_t elements) { return (elements + kOfRow<Dot> - 1) / kOfRow<Dot>; };
  macro_kernel<Dot, kOneLimb>(w, x, OfBlocks{scales, M}, tiles(scales.segment), M, begin / kOfRow<Dot>, tiles(n), acc);
}

// ---- packing -------------------------------------------------------------------------------------------

void pack_i8(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  pack_operands<int8_t>(rows, n, out, [&](int64_t row, int8_t* to) {
    RowsAsI8::load(from, static_cast<const char*>(source) + row * rows.stride, n, to);
  });
}

template <void (*pack)(Element, const void*, const BlockRows&, int64_t, void*)>
void pack_segments(Element from, const void* source, const BlockRows& rows, int64_t, int64_t, int64_t n, void* out) {
  pack(from, source, rows, n, out);
}

// The even ones of 8 codes, then the odd ones, as bytes.
struct Nibbles {
  static constexpr int kTiles = 2;
  static constexpr int64_t kMultiple = kTile;
  void operator()(uint8x16_t words, char* to) const {
    U32 halves[segments::SignedNibbles::kWords];
    segments::SignedNibbles::load((U32)words, halves);
    store(to, vzip1q_u32((uint32x4_t)halves[0], (uint32x4_t)halves[1]));
    store(to + kStepBytes, vzip2q_u32((uint32x4_t)halves[0], (uint32x4_t)halves[1]));
  }
};

void pack_nibbles(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_tiles(reinterpret_cast<const char*>(first.packed) + begin / 2, rows, n / 2, out, Nibbles());
}

struct RowsInEights {
  using Operand = int8_t;
  static void load(Element from, const void* source, int64_t n, int8_t* out) {
    pad_with_zeros(out, n);
    segments::pack_x_nibbles(from, source, 0, 1, n, out, nullptr);
  }
};

// ---- tables --------------------------------------------------------------------------------------------

constexpr GemmShape kShapeI8 = shape_of<DotI8, kOneLimb>(pack_x<RowsAsI8, kAsTheyLie>, accepts_every_row);

constexpr Gemm8Bit kGemmI8{.shape = kShapeI8, .pack_w = pack_i8, .macro_kernel = macro_kernel_alone<DotI8, kOneLimb>};

constexpr GemmInt4Codes kGemmInt4I8{.shape = shape_of<DotI8, kOneLimb>(pack_x<RowsInEights, kAsTheyLie>, accepts_every_row),
                                    .pack_w = pack_nibbles,
                                    .macro_kernel = macro_kernel_int4<DotI8, kOneLimb>};

constexpr GemmSegments kGemmSegmentsI8{.shape = kShapeI8,
                                       .block_bytes = kPanel * kBlockRow,
                                       .pack_w = pack_segments<pack_i8>,
                                       .macro_kernel = macro_kernel_blocks<DotI8>};

constexpr GemmSegments kGemmSegmentsBf16{.shape = kGemmBf16.shape,
                                         .block_bytes = kPanel * kBlockRow,
                                         .pack_w = pack_segments<pack_8bit>,
                                         .macro_kernel = macro_kernel_blocks<DotBf16>};

}  // namespace mmla
}  // namespace
}  // namespace aoext::cpu
