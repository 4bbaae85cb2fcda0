// What kernels of blocks.h share: scales as float32, and what ends a product.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/scales.cuh"

namespace aoext::cuda {

// Scale i of w, of those that lie row by row.
__device__ __forceinline__ float load_block_scale(const BlockLinear& p, int64_t i) {
  return scale_of_bits(load_scale_bits(p.block_scale, i, p.block_scale_type), p.block_scale_type);
}

__device__ __forceinline__ float global_scale(const BlockLinear& p) { return p.global_scale ? *p.global_scale : 1.0f; }

}  // namespace aoext::cuda
