// Which kernel a problem gets on a CUDA device: the only place where shapes choose code. A plan is one value, made once for each
// problem, that can be compared, printed and forced.
#pragma once

#include <string>

#include "common/explanation.h"
#include "common/problem.h"
#include "cuda/kernel_list.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// For int4, of experts or not.
struct Int4Plan {
  Int4Kernels kernel = Generic{};
  ScalarType scale = ScalarType::BFloat16;  // what scales and zeros are converted to first, where they are of another type

  bool operator==(const Int4Plan&) const = default;
};

// The problem as kernels see it, without its pointers; with scales as they are, or converted to another type.
Int4Linear int4_linear(const LinearProblem& p);
Int4Linear int4_linear(const LinearProblem& p, ScalarType scale);

// `aligned` says so of the weight, its scales and zeros.
Int4Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned);

// Whether kernels that count K in 32 bits serve: those that take any shape, quantise, dequantise or pack.
bool takes_one_pass(int64_t K, const Device& device);

// Every plan has these: as text, what it launches (kernel_list.h) and what aoext.explain tells, for the problem that it was made
// for.
std::string text(const Int4Plan& plan);
inline std::string instance(const Int4Plan& plan, const LinearProblem& p) {
  return instance(plan.kernel, int4_linear(p, plan.scale));
}
inline Explanation explain(const Int4Plan& plan, const LinearProblem& /*p*/) { return explain(plan.kernel); }

}  // namespace aoext::cuda
