// Which kernel a product of an input of 8 bits gets whose operands have a scale a block, or whose weight is int4.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// Kernels of weight-only int4, whose sums the scales of x multiply, serve int4 under few rows of x, with groups of fewer than 128
// k, and on GPUs without ScaledWgmmaConfig. Some for few rows read the codes of x, to the others it goes as numbers of the
// result's 16 bits.
struct ScaledPlan {
  std::variant<ScaledKernels, Int4Kernels> kernel = ScaledKernels(Generic{});
  ScalarType scale = ScalarType::Float;  // what scales of w are converted to first, where they are of another type

  bool operator==(const ScaledPlan&) const = default;

  // Null where the plan is by the other list.
  const Int4Kernels* weight_only() const { return std::get_if<Int4Kernels>(&kernel); }
  const ScaledWgmmaConfig* wgmma() const {
    const auto* const own = std::get_if<ScaledKernels>(&kernel);
    return own == nullptr ? nullptr : std::get_if<ScaledWgmmaConfig>(own);
  }
  bool is_generic() const { return kernel == std::variant<ScaledKernels, Int4Kernels>(ScaledKernels(Generic{})); }
};

// The problem as kernels see it, without its pointers, its scales of w of some type. Its input is of 8 bits.
ScaledLinear scaled_linear(const LinearProblem& p, ScalarType scale);

// For products that formats.h says are not rowwise. `aligned` says so of the weight and, of int4, of its scales and zeros.
ScaledPlan plan_scaled(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const ScaledPlan& plan);

// Whether a kernel of weight-only int4 reads codes of an x of M rows.
bool reads_codes(const Int4Kernels& kernel, int64_t M);
// Whether the launch of a product with int4 quantises x itself where that is asked of it: the same codes, scales and bits of y.
bool quantizes(const ScaledPlan& plan);

std::string instance(const ScaledPlan& plan, const LinearProblem& p);
Explanation explain(const ScaledPlan& plan, const LinearProblem& p);

}  // namespace aoext::cuda
