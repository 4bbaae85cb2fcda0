// Products of bytes in 16 bits, for gemv_int8_limbs_staged.inc.h where there is no AVX-VNNI.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_avx2.inc.h"

namespace aoext::cpu {
namespace {

template <int kLimbs, int kUnits>
inline I32 limb_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x) {
  const auto of_unit = [&](int unit, int limb) { return x + kLimbs * kLimbUnit * unit + kLimbUnit * limb; };
  // 16 bits: at most four pairs of 24 · 128.
  const auto pairs = [&](int limb) {
    __m256i sums = {};
    for (int unit = 0; unit < kUnits; ++unit) {
      const int8_t* const from = of_unit(unit, limb);
      sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16((__m256i)even[unit], load<__m256i>(from)));
      sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16((__m256i)odd[unit], load<__m256i>(from + kLimbBytes)));
    }
    return sums;
  };
  if constexpr (kLimbs == 1) return (I32)_mm256_madd_epi16(pairs(0), _mm256_set1_epi16(1));
  const auto weighted = [](__m256i sums, int16_t weight) { return (I32)_mm256_madd_epi16(sums, _mm256_set1_epi16(weight)); };
  const I32 first = weighted(pairs(0), 256) + weighted(pairs(1), 1);
  if constexpr (kLimbs == 2)
    return first;
  else
    return (first << 8) + weighted(pairs(2), 1);
}

}  // namespace
}  // namespace aoext::cpu
