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
  constexpr int64_t kKC = 256;  // floats
  static constexpr Kernels table{
      .name = "portable",
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
      .gemm_i8 = &kGemmI8<kKC>,
      .gemm_int4_f32 = &kGemmInt4F32<kKC>,
      .gemv_8bit_f32 = &kGemv8BitF32,
      .gemv_int4 = &kGemvInt4,
  };
  return table;
}

}  // namespace aoext::cpu
