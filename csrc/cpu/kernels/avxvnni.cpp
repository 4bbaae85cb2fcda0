// AVX2, FMA, F16C and AVX-VNNI: products of bytes in vectors of 32.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/e4m3_avx.inc.h"
#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm_i8_avx2.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_i8_avx2.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx2.inc.h"
#include "cpu/kernels/limb_sums_avxvnni.inc.h"
#include "cpu/kernels/quantize.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avxvnni() {
  static constexpr Kernels table{
      .name = "avxvnni",
      .to_float = to_float,
      .columns_to_float = columns_to_float,
      .from_float = from_float,
      .dequantize_int4 = dequantize_int4,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .group_sums = group_sums,
      .f32 = &kTilesF32<384>,
      .i8 = &kTilesI8<768>,
      .values_f32 = &kValuesF32,
      .arrange_int4 = arrange_int4,
      .dot_int4 = dot_int4,
      .planes = &kPlanesStaged<2>,
      .fine_planes = &kPlanesStaged<3>,
      .dot_i8 = dot_i8,
      .scale_row = scale_row,
      .quantize_row = quantize_row,
  };
  return table;
}

}  // namespace aoext::cpu
