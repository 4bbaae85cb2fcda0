// What stands in every instruction set's table: the algorithms that each compiles with vectors of its own.
#pragma once

#include "cpu/kernels/blockwise.inc.h"
#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm.inc.h"
#include "cpu/kernels/gemm_segments.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_blockwise.inc.h"
#include "cpu/kernels/gemv_int4.inc.h"
#include "cpu/kernels/int2.inc.h"
#include "cpu/kernels/planes.inc.h"
#include "cpu/kernels/quantize.inc.h"
#include "cpu/kernels/write_weight.inc.h"

namespace aoext::cpu {
namespace {

// What an instruction set has beside, it adds.
constexpr Kernels table_of_all(const Gemm8Bit* gemm_i8) {
  return {
      .to_float = to_float,
      .from_float = from_float,
      .columns_to_float = columns_to_float,
      .rows_to_columns = rows_to_columns,
      .float_scales = float_scales,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .shift_zero_points = shift_zero_points,
      .zero_point_terms = zero_point_terms,
      .group_sums = group_sums,
      .subtract_group_terms = subtract_group_terms,
      .scale_row = scale_row,
      .widen_int2 = widen_int2,
      .unpack_planes = unpack_planes,
      .numbers_of_planes = numbers_of_planes,
      .columns_to_rows = columns_to_rows,
      .dequantize_int4 = dequantize_int4,
      .dequantize_blockwise = dequantize_blockwise,
      .quantize_row = quantize_row,
      .write_weight = write_weight,
      .largest_magnitude = largest_magnitude,
      .gemm_f32 = &kGemmF32<kKC>,
      .gemm_i8 = gemm_i8,
      .gemv_8bit_f32 = &kGemv8BitF32,
      .gemm_int4_f32 = &kGemmInt4F32<kKC>,
      .gemm_int4_codes_f32 = &segments::kGemmInt4CodesF32,
      .gemv_int4 = &kGemvInt4,
      .gemm_blockwise_f32 = &kGemmBlockwiseF32<kKC>,
      .gemv_blockwise_f32 = &kGemvBlockwiseF32,
      .gemv_lut4_f32 = &kGemvLut4F32,
      .gemm_segments_f32 = &segments::kGemmSegments<segments::DotF32, RowsAsF32>,
  };
}

}  // namespace
}  // namespace aoext::cpu
