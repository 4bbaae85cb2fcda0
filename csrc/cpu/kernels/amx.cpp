// AVX-512 as in avx512.cpp, and AMX's tiles of bfloat16 and int8.
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/e4m3_avx.inc.h"
#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm_int4_amx.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_i8_avx512.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/gemv_int8_limbs_amx.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx512.inc.h"
#include "cpu/kernels/quantize.inc.h"

namespace aoext::cpu {

const Kernels& kernels_amx() {
  constexpr int64_t kKC = 512;  // floats
  static constexpr Kernels table{
      .name = "amx",
      .to_float = to_float,
      .columns_to_float = columns_to_float,
      .from_float = from_float,
      .dequantize_int4 = dequantize_int4,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .group_sums = group_sums,
      .scale_row = scale_row,
      .quantize_row = quantize_row,
      .gemm_f32 = &kGemmF32<kKC>,
      .gemm_i8 = &kGemmI8,
      .gemm_bf16 = &kGemmBf16,
      .gemm_int4_f32 = &kGemmInt4F32<kKC>,
      .gemm_int4_bf16 = &kGemmInt4Bf16,
      .gemv_8bit_f32 = &kGemv8BitF32,
      .gemv_int4 = &kGemvInt4,
      .gemv_i8 = dot_i8,
      .gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs, kIntoSecondCache>,
      .gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs, kIntoSecondCache>,
      .gemv_limbs2_packed = &kGemvLimbs2Packed,
  };
  return table;
}

}  // namespace aoext::cpu
