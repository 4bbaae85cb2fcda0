// Products of bytes by sdot, for gemv_planes.inc.h: codes below 128 are signed bytes too.
#pragma once

#include "cpu/kernels/gemv_planes.inc.h"

namespace aoext::cpu {
namespace {

template <bool kSigned>
inline I32 add_products(I32 sums, U32 codes, U32 x) {
  return (I32)vdotq_s32((int32x4_t)sums, (int8x16_t)codes, (int8x16_t)x);
}

}  // namespace
}  // namespace aoext::cpu
