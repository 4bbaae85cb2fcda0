// NEON, sdot, and matrix products of bytes (smmla) and of bfloat16 (bfmmla): Neoverse V1, N2 and V2, Apple M2.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/products_i8_dotprod.inc.h"
#include "cpu/kernels/table_neon.inc.h"

#include "cpu/kernels/gemm_i8_mmla.inc.h"
#include "cpu/kernels/gemv_lut4_bf16_neon.inc.h"
#include "cpu/kernels/limb_sums_mmla.inc.h"

namespace aoext::cpu {

const Kernels& kernels_i8mm() {
  static const Kernels table = [] {
    Kernels all = kernels_dotprod();
    all.gemm_i8 = &mmla::kGemmI8;
    all.gemm_int4_i8 = &mmla::kGemmInt4I8;
    all.gemm_segments_i8 = &mmla::kGemmSegmentsI8;
    all.gemm_segments_bf16 = &mmla::kGemmSegmentsBf16;
    all.gemm_bf16 = &mmla::kGemmBf16;
    all.gemm_bf16_limbs = &mmla::kGemmBf16Limbs;
    all.gemm_int4_codes = &mmla::kGemmInt4Codes;
    all.gemm_int4_codes_limbs = &mmla::kGemmInt4CodesLimbs;
    all.gemm_lut4_bf16 = &mmla::kGemmLut4Scaled;
    all.gemm_8bit_groups = &mmla::kGemm8BitGroups<kOneLimb>;
    all.gemm_8bit_groups_limbs = &mmla::kGemm8BitGroups<kTwoLimbs>;
    all.gemm_lut4_groups = &mmla::kGemmLut4Groups<kOneLimb>;
    all.gemm_lut4_groups_limbs = &mmla::kGemmLut4Groups<kTwoLimbs>;
    all.gemv_lut4_bf16 = &kGemvLut4Bf16;
    all.gemv_limb = &kGemvLimbs<kOneInt8Limb>;
    all.gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs>;
    all.gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs>;
    all.gemv_e2m1_limbs2 = &kGemvLimbs<kTwoInt8Limbs, DoubledE2m1>;
    all.gemv_e2m1_limbs3 = &kGemvLimbs<kThreeInt8Limbs, DoubledE2m1>;
    return of_library(all);
  }();
  return table;
}

}  // namespace aoext::cpu
