// Products of bytes in 32 bits by AVX-512 VNNI, for gemv_int8_limbs_staged.inc.h.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

template <int kLimbs, int kUnits>
inline I32 limb_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x) {
  static_assert(kUnits == 1);
  I32 sums = {};
  for (int limb = 0; limb < kLimbs; ++limb) {
    const int8_t* const from = x + kLimbUnit * limb;
    if (limb > 0) sums <<= 8;
    sums = dot_bytes(dot_bytes(sums, even[0], load<U32>(from)), odd[0], load<U32>(from + kLimbBytes));
  }
  return sums;
}

}  // namespace
}  // namespace aoext::cpu
