// Which kernel a product gets on a CUDA device whose weight's codes lie in blocks of bytes.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

struct PackedPlan {
  PackedKernels kernel = Generic{};
  int limbs = 1;  // of bfloat16, that the input is split into where it is not one of 16 bits without scales

  bool operator==(const PackedPlan&) const = default;
};

// Whether a weight's codes are those of kernels/packed.h.
constexpr bool is_in_bytes(Code code) { return code >= Code::int2; }

// The problem as kernels see it, without its pointers; its input as it is, or as limbs.
PackedLinear packed_linear(const LinearProblem& p);
PackedLinear packed_linear(const LinearProblem& p, int limbs);

// `aligned` says so of the weight and, of scales beside codes, of these.
PackedPlan plan_packed(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const PackedPlan& plan);
std::string instance(const PackedPlan& plan, const LinearProblem& p);
inline Explanation explain(const PackedPlan& plan, const LinearProblem& /*p*/) { return explain(plan.kernel); }

}  // namespace aoext::cuda
