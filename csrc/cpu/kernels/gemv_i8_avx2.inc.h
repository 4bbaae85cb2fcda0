// int8 for gemv_i8.inc.h, widened to 16 bits.
#pragma once

#include "cpu/kernels/gemm_i8_avx2.inc.h"

namespace aoext::cpu {
namespace {

constexpr bool kOneStream = true;

inline __m256i load_i8(const int8_t* p) { return _mm256_cvtepi8_epi16(load<__m128i>(p)); }

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/gemv_i8.inc.h"
