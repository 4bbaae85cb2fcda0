// Which kernel an int4 product of experts gets on a CUDA device. The host knows the rows of all experts and not those of one.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// GroupedRingConfig for few rows, GroupedWgmmaConfig for more on compute capability 9.0; GroupedInt4Any takes any. Generic, which
// waits for the device, is left to devices without kernels.
struct GroupedInt4Plan {
  GroupedInt4Kernel kernel = Generic{};
  ScalarType scale = ScalarType::BFloat16;  // what scales and zeros are converted to first, where they are of another type

  bool operator==(const GroupedInt4Plan&) const = default;
};

// The problem as kernels see it, without its pointers.
GroupedInt4Linear grouped_int4_linear(const LinearProblem& p);

// `aligned` says so of the weight, its scales and zeros.
GroupedInt4Plan plan_grouped_int4(const LinearProblem& p, const Device& device, bool aligned);

std::string text(const GroupedInt4Plan& plan);

// For aoext.explain.
Explanation explain(const GroupedInt4Plan& plan);

}  // namespace aoext::cuda
