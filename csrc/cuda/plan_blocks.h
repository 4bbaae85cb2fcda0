// Which kernel a weight-only product with a scale a block of w gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// BlocksDecodeConfig for few rows of x (kernels/blocks_decode.cuh); BlocksWgmmaConfig for more on compute capability 9.0
// (kernels/sm90a/blocks_wgmma.cuh).
struct BlocksPlan {
  BlocksKernel kernel = Generic{};

  bool operator==(const BlocksPlan&) const = default;
};

// Whether the blocks are rows, so that plan_rowwise is to be asked.
bool is_rowwise(const LinearProblem& p);

// The problem as kernels see it, without its pointers.
BlockLinear block_linear(const LinearProblem& p);

// `aligned`: the weight starts at a multiple of 16 bytes.
BlocksPlan plan_blocks(const LinearProblem& p, const Device& device, bool aligned);

// For aoext.explain.
Explanation explain(const BlocksPlan& plan);

}  // namespace aoext::cuda
