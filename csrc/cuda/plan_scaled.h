// Which kernel a product of an input of 8 bits gets whose operands have a scale a block, or whose weight is int4.
#pragma once

#include <optional>

#include "cuda/kernels/scaled.h"
#include "cuda/plan.h"

namespace aoext::cuda {

// Of int4 under few rows of x or with groups of fewer than 128 k, and on GPUs without ScaledWgmmaConfig, the kernels of
// weight-only int4, whose sums the scales of x multiply. Some for few rows read its codes, to the others it goes as numbers of
// the result's 16 bits.
struct ScaledPlan {
  ScaledKernel kernel = Generic{};
  ScalarType scale = ScalarType::Float;  // what scales of w are converted to first, where they are of another type

  bool operator==(const ScaledPlan&) const = default;
};

// The problem as kernels see it, without its pointers, its scales of w of some type. Its input is of 8 bits.
ScaledLinear scaled_linear(const LinearProblem& p, ScalarType scale);

// scaled_mm_blockwise and scaled_mm_int4. `aligned` says so of the weight and, of int4, of its scales and zeros.
ScaledPlan plan_scaled(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const ScaledPlan& plan);

// A plan for weight-only int4, where it is one.
std::optional<Int4Plan> weight_only(const ScaledPlan& plan);

// Whether a kernel of weight-only int4 reads codes of an x of M rows.
bool reads_codes(const Int4Plan& plan, int64_t M);
// Whether the launch of a product with int4 quantises x itself where that is asked of it: the same codes, scales and bits of y.
bool quantizes(const ScaledPlan& plan);

// For aoext.explain.
Explanation explain(const ScaledPlan& plan);

}  // namespace aoext::cuda
