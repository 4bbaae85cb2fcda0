// Which kernel a weight-only product with a scale a block of w gets on a CUDA device.
#pragma once

#include "cuda/plan.h"

namespace aoext::cuda {

// Fp4DecodeConfig for few rows of x with mxfp4's and nvfp4's blocks (kernels/fp4_decode.cuh), BlocksDecodeConfig with any
// (kernels/blocks_decode.cuh); for more BlocksWgmmaConfig on compute capability 9.0 (kernels/sm90a/blocks_wgmma.cuh), and
// BlocksMmaConfig anywhere (kernels/blocks_mma.h).
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
