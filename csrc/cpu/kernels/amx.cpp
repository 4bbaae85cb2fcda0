// AMX's tiles of bfloat16 and int8, beside AVX-512 as avx512.cpp has compiled it.
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_blockwise_amx.inc.h"
#include "cpu/kernels/gemm_int4_amx.inc.h"
#include "cpu/kernels/gemv_int8_limbs_amx.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_amx() {
  static const Kernels table = [] {
    Kernels all = kernels_avx512_beside_amx();
    all.gemm_i8 = &kGemmI8;
    all.gemm_bf16 = &kGemmBf16;
    all.gemm_int4_bf16 = &kGemmInt4Bf16;
    all.gemm_8bit_bf16 = &kGemmBlockwiseBf16;
    all.gemm_lut4_bf16 = &kGemmBlockwiseBf16;
    all.gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs, kIntoSecondCache>;
    all.gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs, kIntoSecondCache>;
    all.gemv_limbs2_packed = &kGemvLimbs2Packed;
    all.gemv_limb = &kGemvLimbs<kOneInt8Limb, kIntoSecondCache>;
    return of_library(all);
  }();
  return table;
}

}  // namespace aoext::cpu
