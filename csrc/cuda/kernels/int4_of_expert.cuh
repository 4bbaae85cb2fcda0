// The product of one of the experts of a grouped int4 product.
#pragma once

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/int4.h"

namespace aoext::cuda {

// By its weight; what it has of x and y, and how many rows, stays as it is.
__device__ __forceinline__ Int4Linear of_expert(const Int4Linear& p, int64_t expert) {
  const int64_t scales = p.K / p.group_size * p.N;
  Int4Linear own = p;
  own.weight += expert * (p.N * (p.K / 2));
  own.scale = behind(p.scale, expert * scales, p.scale_type);
  own.zero_point = behind(p.zero_point, expert * scales, p.scale_type);
  own.bias = behind(p.bias, expert * p.N, p.bias_type);
  return own;
}

}  // namespace aoext::cuda
