// Products of signed bytes by NEON alone: smull, whose 16 bits sadalp adds to 32 in pairs; of nibbles smlal, as 31 products of
// less than 2¹⁰ are below 2¹⁵. For gemm_i8_neon.inc.h.
#pragma once

#include "cpu/kernels/gemm_segments.inc.h"

namespace aoext::cpu {
namespace {

struct MultiplyI8 {
  static constexpr int kMR = 4;
  using Operand = int8_t;
  using Vector = int8x16_t;
  using Sums = int32x4_t;
  using Sum = int32_t;
  static Sums multiply_add(Sums sums, Vector w, Vector x) {
    sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    return vpadalq_s16(sums, vmull_high_s8(w, x));
  }
  static void add(const Sums (&sums)[kNR], int32_t* acc) { add_sums(sums, acc); }
};

namespace segments {

// Halves of words, the first two channels' and the other two's.
struct DotI8 {
  using Operand = int8_t;
  struct Sums {
    int32x4_t low, high;
  };
  using Total = I32;
  static constexpr int64_t kRun = kBlockRow / kWord;
  static Sums add(Sums sums, U32 w, U32 x) {
    const int8x16_t wk = (int8x16_t)w, xk = (int8x16_t)x;
    return {vpadalq_s16(sums.low, vmull_s8(vget_low_s8(wk), vget_low_s8(xk))), vpadalq_s16(sums.high, vmull_high_s8(wk, xk))};
  }
  static Total total(Sums sums) { return (Total)vpaddq_s32(sums.low, sums.high); }
};

struct DotNibbles {
  using Operand = int8_t;
  struct Sums {
    int16x8_t low, high;
  };
  using Total = I32;
  static constexpr int64_t kRun = 31;
  static Sums add(Sums sums, U32 w, U32 x) {
    const int8x16_t wk = (int8x16_t)w, xk = (int8x16_t)x;
    return {vmlal_s8(sums.low, vget_low_s8(wk), vget_low_s8(xk)), vmlal_high_s8(sums.high, wk, xk)};
  }
  static Total total(Sums sums) { return (Total)vpaddq_s32(vpaddlq_s16(sums.low), vpaddlq_s16(sums.high)); }
};

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
