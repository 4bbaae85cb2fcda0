// What stands in every instruction set's SharedKernels.
#pragma once

#include "cpu/kernels/epilogue.inc.h"
#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

// What an instruction set has beside, it adds.
constexpr SharedKernels shared_by_all() {
  return {
      .to_float = to_float,
      .has_wide_zero_points = has_wide_zero_points,
      .split_zero_points = split_zero_points,
      .shift_zero_points = shift_zero_points,
      .group_sums = group_sums,
      .subtract_group_terms = subtract_group_terms,
      .scale_row = scale_row,
      .gemm_int4_f32 = &kGemmInt4F32<kKC>,
  };
}

}  // namespace
}  // namespace aoext::cpu
