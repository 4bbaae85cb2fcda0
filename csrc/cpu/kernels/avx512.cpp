// AVX-512 F, BW, DQ, VL, VBMI, VNNI and BF16.
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/e4m3_avx.inc.h"
#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm_bf16_limbs_avx512.inc.h"
#include "cpu/kernels/gemm_int4_avx512.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_8bit_bf16_avx512.inc.h"
#include "cpu/kernels/gemv_i8_avx512.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx512.inc.h"
#include "cpu/kernels/quantize.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avx512() {
  static constexpr Kernels table{
      .name = "avx512",
      .to_float = to_float,
      .columns_to_float = columns_to_float,
      .from_float = from_float,
      .dequantize_int4 = dequantize_int4,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .group_sums = group_sums,
      .f32 = &kTilesF32<512>,
      .i8 = &kLanesI8,
      .bf16 = &kLanesBf16,
      .bf16_int4 = &kLanesBf16Int4,
      .limbs = &kLanesLimbs,
      .limbs_int4 = &kLanesLimbsInt4,
      .values_f32 = &kValuesF32,
      .values_bf16 = &kValuesBf16,
      .arrange_int4 = arrange_int4,
      .dot_int4 = dot_int4,
      .planes = &kPlanesAtOnce<2, 3>,
      .fine_planes = &kPlanesAtOnce<3, 3>,
      .dot_i8 = dot_i8,
      .scale_row = scale_row,
      .quantize_row = quantize_row,
  };
  return table;
}

}  // namespace aoext::cpu
