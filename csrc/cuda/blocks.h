// Weight-only products with a scale a block of w on CUDA.
#pragma once

#include "common/explain.h"
#include "cuda/operands.h"
#include "generic/blockwise.h"

namespace aoext::cuda {

// Null where no kernel of this folder serves.
OptionalTensor blocks(const LinearProblem& p, const Tensor& input, const generic::BlockwiseWeight& w, const OptionalTensor& bias);

// For aoext.explain.
Explanation explain_blocks(const Call& call);

}  // namespace aoext::cuda
