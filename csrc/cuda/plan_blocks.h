// Which kernel a weight-only product with a scale a block of w gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

struct BlocksPlan {
  BlocksKernels kernel = Generic{};

  bool operator==(const BlocksPlan&) const = default;
};

// The problem as kernels see it, without its pointers.
BlockLinear block_linear(const LinearProblem& p);

// `aligned`: the weight starts at a multiple of 16 bytes.
BlocksPlan plan_blocks(const LinearProblem& p, const Device& device, bool aligned);

inline std::string text(const BlocksPlan& plan) { return text(plan.kernel); }
inline std::string instance(const BlocksPlan& plan, const LinearProblem& p) { return instance(plan.kernel, block_linear(p)); }
inline Explanation explain(const BlocksPlan& plan, const LinearProblem& /*p*/) { return explain(plan.kernel); }

}  // namespace aoext::cuda
