// Products of bytes in 32 bits by AVX-VNNI, for gemv_int8_limbs_staged.inc.h.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_avx2.inc.h"

namespace aoext::cpu {
namespace {

// sums + the four products of unsigned by signed bytes of each lane.
inline I32 dot_bytes(I32 sums, U32 unsigned_bytes, U32 signed_bytes) {
  return (I32)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)unsigned_bytes, (__m256i)signed_bytes);
}

template <int kLimbs, int kUnits>
inline I32 limb_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x) {
  const auto of_unit = [&](int unit, int limb) { return x + kLimbs * kLimbUnit * unit + kLimbUnit * limb; };
  __m256i sums = {};
  for (int limb = 0; limb < kLimbs; ++limb) {
    if (limb > 0) sums = _mm256_slli_epi32(sums, 8);
    for (int unit = 0; unit < kUnits; ++unit) {
      const int8_t* const from = of_unit(unit, limb);
      sums = _mm256_dpbusd_avx_epi32(sums, (__m256i)even[unit], load<__m256i>(from));
      sums = _mm256_dpbusd_avx_epi32(sums, (__m256i)odd[unit], load<__m256i>(from + kLimbBytes));
    }
  }
  return (I32)sums;
}

}  // namespace
}  // namespace aoext::cpu
