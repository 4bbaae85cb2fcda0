// Products of bytes in 32 bits by AVX-VNNI, for gemv_int8_limbs_avx2.inc.h.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_avx2.inc.h"

namespace aoext::cpu {
namespace {

template <int kPlanes, int kUnits>
inline I32 plane_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x) {
  const auto of_unit = [&](int unit, int plane) { return x + kPlanes * kPlaneUnit * unit + kPlaneUnit * plane; };
  __m256i sums = {};
  for (int plane = 0; plane < kPlanes; ++plane) {
    if (plane > 0) sums = _mm256_slli_epi32(sums, 8);
    for (int unit = 0; unit < kUnits; ++unit) {
      const int8_t* const from = of_unit(unit, plane);
      sums = _mm256_dpbusd_avx_epi32(sums, (__m256i)even[unit], load<__m256i>(from));
      sums = _mm256_dpbusd_avx_epi32(sums, (__m256i)odd[unit], load<__m256i>(from + kPlaneBytes));
    }
  }
  return (I32)sums;
}

}  // namespace
}  // namespace aoext::cpu
