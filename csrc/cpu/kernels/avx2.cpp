// AVX2, FMA and F16C.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/e4m3_avx.inc.h"
#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm_i8_avx2.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_i8_avx2.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx2.inc.h"
#include "cpu/kernels/limb_sums_avx2.inc.h"
#include "cpu/kernels/quantize.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avx2() {
  constexpr int64_t kKC = 384;  // floats
  static constexpr Kernels table{
      .name = "avx2",
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
      .gemm_i8 = &kGemmI8<2 * kKC>,
      .gemm_int4_f32 = &kGemmInt4F32<kKC>,
      .gemv_8bit_f32 = &kGemv8BitF32,
      .gemv_int4 = &kGemvInt4,
      .gemv_i8 = dot_i8,
      .gemv_limbs2_staged = &kGemvLimbsStaged<kTwoInt8Limbs>,
      .gemv_limbs3_staged = &kGemvLimbsStaged<kThreeInt8Limbs>,
  };
  return table;
}

}  // namespace aoext::cpu
