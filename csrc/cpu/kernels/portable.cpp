// Any CPU that the compiler's baseline serves.
#include "cpu/kernels/vectors_portable.inc.h"

#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm_i8_portable.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/quantize.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_portable() {
  static constexpr Kernels table{
      .name = "portable",
      .to_float = to_float,
      .columns_to_float = columns_to_float,
      .from_float = from_float,
      .dequantize_int4 = dequantize_int4,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .group_sums = group_sums,
      .f32 = &kTilesF32<256>,
      .i8 = &kTilesI8<256>,
      .values_f32 = &kValuesF32,
      .arrange_int4 = arrange_int4,
      .dot_int4 = dot_int4,
      .scale_row = scale_row,
      .quantize_row = quantize_row,
  };
  return table;
}

}  // namespace aoext::cpu
