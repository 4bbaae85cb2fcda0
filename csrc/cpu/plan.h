// Which algorithm a problem gets on this CPU: the only place where shapes choose code.
#pragma once

#include "common/checks.h"
#include "common/explain.h"

namespace aoext::cpu {

enum class Algorithm {
  gemv_limb,           // int4, few rows of x of int8: exact sums of integers
  gemv_limb_staged,    // the same, a row of w after the other
  gemv_limbs2,         // int4, few rows of x as two int8 limbs: integer products; plan_int4_floats for rows of too wide a range
  gemv_limbs3,         // the same with three limbs, for float32 results
  gemv_limbs2_packed,  // as gemv_limbs2, several rows at once with matrix instructions
  gemv_int4,           // int4, few rows of x as floats: the weight's words themselves, read once
  gemv_8bit,           // the same of 8-bit weights
  gemv_blockwise,      // the same of weights with a scale a block, of 8 bits and of codes into a table
  gemm,                // blocks of weights packed in cache, multiplied at once by all rows of x
  gemm_bf16_limbs,     // the same, x of float32 and half as two limbs of bfloat16
  gemm_int4_int8,      // blocks of int4 by x of int8: exact sums of groups
  gemm_segments,       // 8 bits by 8 bits, both with scales of blocks
  gemm_groups,         // as gemm, the scales of blocks meeting the sums of their groups, so that no weight is rounded
  gemm_int4_scaled,    // as gemm, short groups of int4 with their scales, so that weights are rounded: many rows of x
};

constexpr bool is_gemm(Algorithm a) {
  return a == Algorithm::gemm || a == Algorithm::gemm_bf16_limbs || a == Algorithm::gemm_int4_int8 ||
         a == Algorithm::gemm_int4_scaled || a == Algorithm::gemm_groups;
}

struct Plan {
  Algorithm algorithm;
  ScalarType compute;  // what the product multiplies: Float, BFloat16 or Char
};

Plan plan_int4(const LinearProblem& p);              // bf16i4bf16_rowwise
Plan plan_int4_floats(const LinearProblem& p);       // the same without int8 limbs
Plan plan_int4pack(const LinearProblem& p);          // weight_int4pack_mm, and many rows of the former
Plan plan_rowwise(const LinearProblem& p);           // bf16i8bf16_rowwise, bf16f8bf16_rowwise
Plan plan_scaled(const LinearProblem& p);            // int8_mm too
Plan plan_scaled_int4(const LinearProblem& p);       // scaled_mm_int4, scaled_linear_int4
Plan plan_scaled_blockwise(const LinearProblem& p);  // scaled_mm_blockwise, scaled_linear_blockwise

// bf16i8bf16_blockwise, bf16i8bf16_blockwise_zp, bf16f8bf16_blockwise: of one scale a row that of the row-wise operators.
Plan plan_blockwise(const LinearProblem& p);
Plan plan_lut4(const LinearProblem& p, const float* table);  // bf16lut4bf16_blockwise, by what its table holds

// Elements of k of a segment, within which no scale of plan_blockwise's operands ends: all of K where none does.
int64_t segment_of(const LinearProblem& p);

// For aoext.explain: of operators with a plan, and of those that go row by row.
Explanation explain(const Plan& plan);
template <Plan (*kPlan)(const LinearProblem&)>
Explanation explain(const Call& call) {
  return explain(kPlan(call.problem));
}
Explanation explain_rows(const Call& call);

}  // namespace aoext::cpu
