// bfloat16 for gemm_mmla.inc.h: bfmmla, of weights that are bfloat16 exactly, so that none is rounded: 8 bits by way of float32,
// 4 bits by look-ups of the two bytes of each value (table_planes.inc.h). Scales meet sums in float32. Tables of other numbers,
// and many rows of x by short groups of 4 bits, take values times their scales, rounded.
//
// x of float32 and half is two limbs, which both meet the same sums. Subnormal operands count as zero, far below bfloat16's own
// rounding.
#pragma once

#include "cpu/kernels/gemm_mmla.inc.h"
#include "cpu/kernels/table_planes.inc.h"

namespace aoext::cpu {
namespace {
namespace mmla {

struct DotBf16 {
  using Operand = uint16_t;
  using Sums = F32;
  static Sums multiply_add(Sums sums, uint8x16_t x, uint8x16_t w) {
    return (Sums)vbfmmlaq_f32((float32x4_t)sums, (bfloat16x8_t)x, (bfloat16x8_t)w);
  }
};

// ---- loaders -------------------------------------------------------------------------------------------

// Floats that are bfloat16: their upper halves.
inline uint16x8_t upper_halves(const F32 (&v)[2]) { return vuzp2q_u16((uint16x8_t)v[0], (uint16x8_t)v[1]); }

template <Element kType>
struct ValuesOf8Bit {
  static constexpr int kTiles = 2;
  static constexpr int64_t kMultiple = kPad;
  void operator()(uint8x16_t words, char* to) const {
    for (int i = 0; i < kTiles; ++i) {
      F32 values[2];
      widen_exact<kType>(i == 0 ? vget_low_u8(words) : vget_high_u8(words), values);
      for (F32& v : values) v = v * Exact<kType>::kFactor;
      store(to + i * kStepBytes, upper_halves(values));
    }
  }
};

// The even ones of 8 codes, then the odd ones.
struct LookedUpNibbles {
  static constexpr int kTiles = 4;
  static constexpr int64_t kMultiple = kPad / 2;
  TablePlanes<2> table;

  void operator()(uint8x16_t words, char* to) const {
    for (int odd = 0; odd < 2; ++odd) {
      uint16x8_t values[2];
      table.halves(odd ? vshrq_n_u8(words, 4) : vandq_u8(words, vdupq_n_u8(15)), values);
      store(to + odd * kStepBytes, values[0]);
      store(to + (2 + odd) * kStepBytes, values[1]);
    }
  }
};

constexpr float kValuesOfNibbles[] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};

// ---- packing -------------------------------------------------------------------------------------------

void pack_8bit(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  with_8bit_type(
      from, [&](auto of) { pack_tiles(static_cast<const char*>(source), rows, n, out, ValuesOf8Bit<decltype(of)::type>()); });
}

void pack_8bit_codes(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_8bit(first.type, first.codes + begin, rows, n, out);
}

void pack_int4_codes(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const LookedUpNibbles loader{TablePlanes<2>(kValuesOfNibbles)};
  pack_tiles(reinterpret_cast<const char*>(first.packed) + begin / 2, rows, n / 2, out, loader);
}

void pack_lut4_codes(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_tiles(first.codes + begin / 2, rows, (n + 1) / 2, out, LookedUpNibbles{TablePlanes<2>(first.table)});
}

// x as two limbs, the second what the first leaves.
template <bool kEights>
void pack_x_limbs(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t*) {
  alignas(kLine) uint16_t limbs[kTwoLimbs][2][kKC<DotBf16>] = {};
  for (int64_t r = 0; r < rows; ++r) {
    alignas(kLine) float row[kKC<DotBf16>];
    to_float(from, static_cast<const char*>(source) + r * stride, row, n);
    pad_with_zeros(row, n);
    for (int64_t k = 0; k < padded(n); k += kFloats) {
      const F32 x = load<F32>(row + k);
      const bfloat16x4_t nearest = vcvt_bf16_f32((float32x4_t)x);
      const F32 rest = x - (F32)vcvt_f32_bf16(nearest);
      store(limbs[0][r] + k, nearest);
      store(limbs[1][r] + k, vcvt_bf16_f32((float32x4_t)rest));
    }
  }
  const int64_t bytes = padded(n) * static_cast<int64_t>(sizeof(uint16_t));
  for (int limb = 0; limb < kTwoLimbs; ++limb)
    interleave<kEights>(limbs[limb][0], limbs[limb][1], bytes, static_cast<char*>(out) + limb * kBlockPanel, kTile);
}

// ---- tables --------------------------------------------------------------------------------------------

constexpr bool kEights = true, kAsTheyLie = false;
constexpr int64_t kFour = 4, kEight = 8;  // elements that loaders make tiles of at a time

template <bool kOrder>
constexpr GemmShape kShapeBf16 = shape_of<DotBf16, kOneLimb>(pack_x<RowsAsBf16, kOrder>, accepts_bf16);
template <bool kOrder, bool kInt4>
constexpr GemmShape kShapeLimbs = shape_of<DotBf16, kTwoLimbs>(pack_x_limbs<kOrder>, accepts_limbs<kInt4>);

constexpr Gemm8Bit kGemmBf16{.shape = shape_of<DotBf16, kOneLimb>(pack_x<RowsAsBf16, kAsTheyLie>, accepts_every_row),
                             .pack_w = pack_8bit,
                             .macro_kernel = macro_kernel_alone<DotBf16, kOneLimb>};
constexpr Gemm8Bit kGemmBf16Limbs{
    .shape = kShapeLimbs<kAsTheyLie, kBy8Bit>, .pack_w = pack_8bit, .macro_kernel = macro_kernel_alone<DotBf16, kTwoLimbs>};

constexpr GemmInt4Codes kGemmInt4Codes{
    .shape = kShapeBf16<kEights>, .pack_w = pack_int4_codes, .macro_kernel = macro_kernel_int4<DotBf16, kOneLimb>};
constexpr GemmInt4Codes kGemmInt4CodesLimbs{
    .shape = kShapeLimbs<kEights, kByInt4>, .pack_w = pack_int4_codes, .macro_kernel = macro_kernel_int4<DotBf16, kTwoLimbs>};

template <int kLimbs>
constexpr GemmBlockwise kGemm8BitGroups{.shape = kLimbs == kOneLimb ? kShapeBf16<kAsTheyLie> : kShapeLimbs<kAsTheyLie, kBy8Bit>,
                                        .columns_of_scales = columns_of_scales,
                                        .pack_w = pack_8bit_codes,
                                        .macro_kernel = macro_kernel_blockwise<DotBf16, kLimbs, kFour>};
template <int kLimbs>
constexpr GemmBlockwise kGemmLut4Groups{.shape = kLimbs == kOneLimb ? kShapeBf16<kEights> : kShapeLimbs<kEights, kBy8Bit>,
                                        .columns_of_scales = columns_of_scales,
                                        .pack_w = pack_lut4_codes,
                                        .macro_kernel = macro_kernel_blockwise<DotBf16, kLimbs, kEight>};

constexpr GemmBlockwise kGemmLut4Scaled{.shape = kGemmBf16.shape,
                                        .pack_w = pack_blockwise<BlockwiseAsBf16>,
                                        .macro_kernel = macro_kernel_of_scaled<macro_kernel_alone<DotBf16, kOneLimb>>};

}  // namespace mmla
}  // namespace
}  // namespace aoext::cpu
