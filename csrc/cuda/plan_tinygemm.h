// Which kernel weight_int4pack_mm gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

struct TinygemmPlan {
  TinygemmKernels kernel = Generic{};

  bool operator==(const TinygemmPlan&) const = default;
};

// The problem as kernels see it, without its pointers.
TinygemmLinear tinygemm_linear(const LinearProblem& p);

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device);

inline std::string text(const TinygemmPlan& plan) { return text(plan.kernel); }

inline std::string instance(const TinygemmPlan& plan, const LinearProblem& p) {
  return instance(plan.kernel, tinygemm_linear(p));
}
inline Explanation explain(const TinygemmPlan& plan, const LinearProblem& /*p*/) { return explain(plan.kernel); }

}  // namespace aoext::cuda
