// Which kernel weight_int4pack_mm gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// TinygemmConfig for few rows of x: from the packed layout (kernels/tinygemm_mm.cuh). Generic below compute capability 8.0 and
// from K = 2^31 on.
struct TinygemmPlan {
  TinygemmKernel kernel = Generic{};

  bool operator==(const TinygemmPlan&) const = default;
};

// The problem as kernels see it, without its pointers.
TinygemmLinear tinygemm_linear(const LinearProblem& p);

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device);

inline std::string text(const TinygemmPlan& plan) { return text(plan.kernel); }

Explanation explain(const TinygemmPlan& plan);  // for aoext.explain

}  // namespace aoext::cuda
