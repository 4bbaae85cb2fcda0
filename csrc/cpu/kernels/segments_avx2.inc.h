// int8 for gemm_segments.inc.h by AVX2 alone.
#pragma once

#include "cpu/kernels/gemm_i8_avx2.inc.h"
#include "cpu/kernels/gemm_segments.inc.h"

namespace aoext::cpu {
namespace {
namespace segments {

// vpmaddubsw: pairs of products in 16 bits, of which eight words are below 8 · 2 · 15 · 128 = 30,720.
struct DotNibbles {
  using Operand = int8_t;
  using Sums = __m256i;
  using Total = I32;
  static constexpr int64_t kRun = 8;
  static Sums add(Sums sums, U32 w, U32 x) { return _mm256_add_epi16(sums, _mm256_maddubs_epi16((__m256i)w, (__m256i)x)); }
  static Total total(Sums sums) { return (I32)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
};

// vpmaddwd of values widened to 16 bits.
struct DotI16 {
  using Operand = int16_t;
  using Sums = I32;
  using Total = I32;
  static constexpr int64_t kRun = 0;
  static constexpr int kUnroll = 1;
  static Sums add(Sums sums, U32 w, U32 x) { return sums + (I32)_mm256_madd_epi16((__m256i)w, (__m256i)x); }
};

constexpr GemmSegments kGemmSegmentsI8 = kGemmSegments<DotI16, RowsAsI16>;

}  // namespace segments
}  // namespace
}  // namespace aoext::cpu
