// bfloat16 for gemm_segments.inc.h: bfdot, which adds two products to each lane.
#pragma once

#include "cpu/kernels/gemm_segments.inc.h"

namespace aoext::cpu {
namespace {
namespace segments {

struct DotBf16 {
  using Operand = uint16_t;
  using Sums = F32;
  using Total = F32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 1;
  static Sums add(Sums sums, U32 w, U32 x) {
    return (Sums)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)(uint16x8_t)w, (bfloat16x8_t)(uint16x8_t)x);
  }
  template <int kLane>
  static Sums add_lane(Sums sums, U32 w, U32 x) {
    return (Sums)vbfdotq_laneq_f32((float32x4_t)sums, (bfloat16x8_t)(uint16x8_t)w, (bfloat16x8_t)(uint16x8_t)x, kLane);
  }
};

constexpr GemmSegments kGemmSegmentsBf16 = kGemmSegments<DotBf16, RowsAsBf16>;

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
