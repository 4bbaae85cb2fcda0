// Products of signed bytes by sdot, which adds four to each lane. For gemm_i8_neon.inc.h.
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
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return vdotq_s32(sums, w, x); }
  static void add(const Sums (&sums)[kNR], int32_t* acc) { add_sums(sums, acc); }
};

namespace segments {

struct DotI8 {
  using Operand = int8_t;
  using Sums = I32;
  using Total = I32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 1;
  static Sums add(Sums sums, U32 w, U32 x) { return (Sums)vdotq_s32((int32x4_t)sums, (int8x16_t)w, (int8x16_t)x); }
  template <int kLane>
  static Sums add_lane(Sums sums, U32 w, U32 x) {
    return (Sums)vdotq_laneq_s32((int32x4_t)sums, (int8x16_t)w, (int8x16_t)x, kLane);
  }
};
using DotNibbles = DotI8;

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
