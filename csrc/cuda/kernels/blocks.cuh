// What kernels of blocks.h share: scales as float32, and what ends a product.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/scales.cuh"

namespace aoext::cuda {

// As for a RowwiseLinear. The table is that of all experts.
__device__ __forceinline__ BlockLinear of_expert(const BlockLinear& p, int64_t expert) {
  BlockLinear own = p;
  static_cast<RowwiseLinear&>(own) = of_expert(static_cast<const RowwiseLinear&>(p), expert);
  const int64_t scales = (p.N + p.block_n - 1) / p.block_n * ((p.K + p.block_k - 1) / p.block_k);
  own.block_scale = behind(p.block_scale, expert * scales, p.block_scale_type);
  if (p.zero) own.zero = p.zero + expert * scales;
  if (p.global_scales > 1) own.global_scale = p.global_scale + expert;
  return own;
}

// Scale i of w, of those that lie row by row.
__device__ __forceinline__ float load_block_scale(const BlockLinear& p, int64_t i) {
  return scale_of_bits(load_scale_bits(p.block_scale, i, p.block_scale_type), p.block_scale_type);
}

__device__ __forceinline__ float global_scale(const BlockLinear& p) { return p.global_scale ? *p.global_scale : 1.0f; }

}  // namespace aoext::cuda
