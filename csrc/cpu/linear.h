// A product with a quantised weight as its plan says.
#pragma once

#include <type_traits>

#include "cpu/gemv.h"
#include "cpu/gemv_e2m1.h"
#include "cpu/multiply_gemm.h"

namespace aoext::cpu {

template <class Weight>
Tensor linear(const LinearProblem& p, const Plan& plan, const Tensor& input, const Weight& weight, const Tensor* input_scale,
              const OptionalTensor& bias, const SubtractedZeroPoints* zero_points = nullptr) {
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input);
  const InputRows rows = input_rows(p, x);
  const Output output(p, y, rows, weight, input_scale, bias, zero_points);
  if (is_gemm(plan.algorithm)) {
    multiply_gemm(plan, rows, weight, output);
  } else if constexpr (std::is_same_v<Weight, RowwiseWeight>) {
    multiply_gemv_8bit(p, plan, x, weight, output);
  } else if constexpr (std::is_same_v<Weight, Int4Weight>) {
    multiply_few_int4(p, plan, x, weight, output);
  } else if constexpr (std::is_same_v<Weight, BlockwiseWeight>) {
    if (plan.algorithm == Algorithm::gemv_blockwise) {
      const GemvBlockwise& gemv = gemv_blockwise(plan, weight);
      multiply_gemv_blockwise(p, gemv, PackedRows(p, x, gemv), p.M, weight, output);
    } else {
      multiply_e2m1_limbs(p, plan, x, weight, output);
    }
  }
  return y;
}

}  // namespace aoext::cpu
