// The plan that a call gets, whichever kind of product it is: what explaining and printing plans share.
#pragma once

#include "common/formats.h"
#include "cuda/plan_blocks.h"
#include "cuda/plan_packed.h"
#include "cuda/plan_rowwise.h"
#include "cuda/plan_scaled.h"
#include "cuda/plan_tinygemm.h"

namespace aoext::cuda {

// f(plan), for weight_only_linear and the seeds of int4.
template <class F>
auto with_weight_only_plan(const LinearProblem& p, const Device& device, bool aligned, F&& f) {
  if (is_in_bytes(p.code)) return f(plan_packed(p, device, aligned));
  if (p.code == Code::int4) return f(plan_int4(p, device, aligned));
  return is_rowwise(p) ? f(plan_rowwise(p, device, aligned)) : f(plan_blocks(p, device, aligned));
}

// f(plan), for scaled_mm and its face by rows.
template <class F>
auto with_scaled_plan(const LinearProblem& p, const Device& device, bool aligned, F&& f) {
  if (is_in_bytes(p.code)) return f(plan_packed(p, device, aligned));
  return is_rowwise(p) ? f(plan_rowwise(p, device, aligned)) : f(plan_scaled(p, device, aligned));
}

// f(plan, product, quantizes), for scaled_linear: the product that its kernel computes, and whether this quantises the input.
template <class F>
auto with_scaled_linear_plan(const LinearProblem& p, const Device& device, bool aligned, F&& f) {
  LinearProblem product = p;
  product.input = p.quantized;
  if (is_in_bytes(p.code)) return f(plan_packed(product, device, aligned), product, false);
  if (is_rowwise(p)) {
    const RowwisePlan plan = plan_scaled_linear(p, device, aligned);
    return f(plan, plan.quantizes ? p : product, plan.quantizes);
  }
  const ScaledPlan plan = plan_scaled(product, device, aligned);
  return f(plan, product, quantizes(plan));
}

}  // namespace aoext::cuda
