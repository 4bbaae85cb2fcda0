// Which kernel a problem gets on a CPU: the only place where shapes choose code. It knows nothing of torch but the names of
// dtypes.
#pragma once

#include "common/formats.h"
#include "common/problem.h"
#include "cpu/few_rows.h"
#include "cpu/isa.h"

namespace aoext::cpu {

// What a choice depends on. `table` has the 16 values of a weight of lut4.
struct Choice {
  const LinearProblem& p;
  Isa isa;
  const FewRows& few;
  bool is_e2m1 = false, is_finite = true, is_bf16 = true, is_i16 = false;  // what the table holds

  explicit Choice(const LinearProblem& p, Isa isa = cpu::isa(), const float* table = nullptr);
};

// Inputs that one bfloat16 is not exact enough for.
inline bool is_wide(const LinearProblem& p) { return p.input == ScalarType::Half || p.input == ScalarType::Float; }

// Elements of k of a segment, within which no scale of scaled_mm's operands ends: all of K where none does.
int64_t segment_of(const LinearProblem& p);

// Whether a weight whose codes lie in planes has zero points.
inline bool has_zero_points_beside(const LinearProblem& p) { return is_by_groups(p.code) || layout(p.code).zero_point.at >= 0; }

// The kernel of a product, or the one that this thread forces (aoext.ops.with_plan). RuntimeError where that one does not take
// the problem; kernels of other products are not in question.
Kernel plan_weight_only(const Choice& c);    // inputs of high precision
Kernel plan_int4_floats(const Choice& c);    // the same of int4 without limbs of int8, for rows of x that these do not hold
Kernel plan_planes_floats(const Choice& c);  // the same of codes in planes, likewise
Kernel plan_scaled(const Choice& c);         // inputs of 8 bits
Kernel plan_int8(const Choice& c);           // int8_mm
Kernel plan_int4pack(const Choice& c);       // weights in the tinygemm layout

}  // namespace aoext::cpu
