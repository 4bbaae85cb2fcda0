// Weights whose blocks hold their scales by one row of x in int8 or in limbs (gemv_planes.inc.h), whose scales are of whole
// blocks. Codes meet x in registers: gemv_row_<instruction set>.inc.h.
//
//   y[n] = Σ over blocks of d · x_scale · Σ over groups of factor · Σ u x + beside
//
// Blocks of 256 have a float and an integer a group, their factor: pairs of products meet it in the instruction that adds them
// up, so that all of a block is integers. Blocks of 32 have no factor. What there is beside, a minimum, or the middle of codes by
// the scale, meets the sums of x over groups. All of w is one stream.
#pragma once

#include "cpu/kernels/gemv_planes.inc.h"

namespace aoext::cpu {
namespace {

// The sum of a row's lanes is its product but for what all rows of w and of x have in common.
template <Code kCode, int kLimbs>
F32 multiply_row_of_32(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums);
template <Code kCode, int kLimbs>
F32 multiply_row_of_256(const uint8_t* row, int64_t blocks, const int8_t* x, const float* x_scales, const float* x_sums);

template <int kLimbs>
void dot_row(const PlanesPanel& w, int64_t N, int64_t K, const RowsByPlanes& x, int64_t M, float (*acc)[kPanel]) {
  const auto multiply = [&](int64_t blocks, auto multiply_row) {
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; n += kRowsBeside) {
        F32 sums[kRowsBeside] = {};
        for (int64_t r = 0; r < kRowsBeside && n + r < N; ++r)
          sums[r] = multiply_row(w.blocks + (n + r) * w.row_bytes, blocks, x.x + m * x.stride, x.scales + m * x.numbers_stride,
                                 x.sums + m * x.numbers_stride);
        float four[kRowsBeside] = {};
        add_sums(sums, four);
        for (int64_t r = 0; r < kRowsBeside && n + r < N; ++r) acc[m][n + r] = four[r] * (w.by * x.scales_of_rows[m]);
      }
  };
  with_planes(w.code, [&](auto of) {
    constexpr Layout kOf = layout_of(decltype(of)::code);
    if constexpr (kOf.group > 0 && kOf.values == 32) multiply(K / 32, multiply_row_of_32<decltype(of)::code, kLimbs>);
    if constexpr (kOf.values == 256 && kOf.scale.has_factor() && !kOf.looks_up)
      multiply(K / 256, multiply_row_of_256<decltype(of)::code, kLimbs>);
  });
}

}  // namespace
}  // namespace aoext::cpu
