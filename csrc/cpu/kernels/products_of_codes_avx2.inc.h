// Products of bytes in 16 bits, for gemv_planes.inc.h where there is no AVX-VNNI: two of codes below 128 are below 2¹⁵. Those of
// signed codes may not be, and are made of 16 bits.
#pragma once

#include "cpu/kernels/gemv_planes.inc.h"

namespace aoext::cpu {
namespace {

template <bool kSigned>
inline I32 add_products(I32 sums, U32 codes, U32 x) {
  const __m256i w = (__m256i)codes, of_x = (__m256i)x;
  if constexpr (!kSigned) return sums + (I32)_mm256_madd_epi16(_mm256_maddubs_epi16(w, of_x), _mm256_set1_epi16(1));
  const auto low = [](__m256i v) { return _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)); };
  const auto high = [](__m256i v) { return _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1)); };
  return sums + ((I32)_mm256_madd_epi16(low(w), low(of_x)) + (I32)_mm256_madd_epi16(high(w), high(of_x)));
}

}  // namespace
}  // namespace aoext::cpu
