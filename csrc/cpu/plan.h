// Which algorithm a problem gets on this CPU: the only place where shapes choose code.
#pragma once

#include "common/checks.h"
#include "common/explain.h"

namespace aoext::cpu {

enum class Algorithm {
  planes,        // int4, few input rows in 16-bit fixed point: integer products; plan_int4_floats for rows of too wide a range
  fine_planes,   // the same in 23-bit fixed point, for float32 results
  plane_tiles,   // as planes, several rows at once as tiles of bytes
  nibbles,       // int4, few input rows: the weight's words themselves, read once
  values,        // the same of 8-bit weights
  tiles,         // blocks of weights unpacked in cache, multiplied at once by all input rows
  limb_tiles,    // the same, inputs of float32 and half as two limbs of bfloat16
  scaled_tiles,  // as tiles, short groups of int4 with their scales, so that weights are rounded: many input rows
};

struct Plan {
  Algorithm algorithm;
  ScalarType compute;  // what the product multiplies: Float, BFloat16 or Char
};

Plan plan_int4(const LinearProblem& p);         // bf16i4bf16_rowwise
Plan plan_int4_floats(const LinearProblem& p);  // the same without planes
Plan plan_int4pack(const LinearProblem& p);     // weight_int4pack_mm, and many rows of the former
Plan plan_rowwise(const LinearProblem& p);      // bf16i8bf16_rowwise, bf16f8bf16_rowwise
Plan plan_scaled(const LinearProblem& p);       // int8_mm too

// For aoext.explain: of operators with a plan, and of those that go row by row.
Explanation explain(const Plan& plan);
template <Plan (*kPlan)(const LinearProblem&)>
Explanation explain(const Call& call) {
  return explain(kPlan(call.problem));
}
Explanation explain_rows(const Call& call);

}  // namespace aoext::cpu
