// AVX-512 as in avx512.cpp, and AMX's tiles of bfloat16 and int8.
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_blockwise_amx.inc.h"
#include "cpu/kernels/gemm_int4_amx.inc.h"
#include "cpu/kernels/gemv_i8_avx512.inc.h"
#include "cpu/kernels/gemv_int8_limbs_amx.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx512.inc.h"
#include "cpu/kernels/segments_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_amx() {
  static constexpr Kernels table = [] {
    Kernels all = table_of_all(&kGemmI8);
    all.gemm_bf16 = &kGemmBf16;
    all.gemm_8bit_bf16 = &kGemmBlockwiseBf16;
    all.gemm_lut4_bf16 = &kGemmBlockwiseBf16;
    all.gemv_i8 = dot_i8;
    all.gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs, kIntoSecondCache>;
    all.gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs, kIntoSecondCache>;
    all.gemv_limbs2_packed = &kGemvLimbs2Packed;
    all.gemm_int4_i8 = &segments::kGemmInt4I8<segments::DotNibbles>;
    all.gemm_segments_i8 = &segments::kGemmSegmentsI8;
    all.gemm_segments_bf16 = &segments::kGemmSegmentsBf16;
    all.gemv_limb = &kGemvLimbs<kOneInt8Limb, kIntoSecondCache>;
    return all;
  }();
  return table;
}

}  // namespace aoext::cpu
