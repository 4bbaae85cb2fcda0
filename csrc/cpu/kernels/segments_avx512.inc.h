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

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
