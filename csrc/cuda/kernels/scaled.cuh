// What kernels of scaled.h share: scales as float32, and an output.
#pragma once

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/scaled.h"
#include "cuda/kernels/scales.cuh"

namespace aoext::cuda {

// The product of one of the experts, by its weight; what it has of x and y, and how many rows, stays as it is.
__device__ __forceinline__ ScaledLinear of_expert(const ScaledLinear& p, int64_t expert) {
  ScaledLinear own = p;
  const int64_t codes = p.N * p.K, bytes = p.weight_type == Element::int4 ? codes / 2 : codes;
  const int64_t scales = (p.N + p.block_n - 1) / p.block_n * ((p.K + p.w_group - 1) / p.w_group);
  own.weight = static_cast<const uint8_t*>(p.weight) + expert * bytes;
  own.scale = behind(p.scale, expert * scales, p.scale_type);
  own.zero = behind(p.zero, expert * scales, p.weight_type == Element::int4 ? p.scale_type : p.weight_type);
  own.bias = behind(p.bias, expert * p.N, p.bias_type);
  return own;
}

__device__ __forceinline__ void store_rounded(const ScaledLinear& p, int64_t m, int64_t n, float v) {
  const int64_t i = m * p.N + n;
  switch (p.output) {
    case Element::fp32: static_cast<float*>(p.y)[i] = v; break;
    case Element::fp16: static_cast<__half*>(p.y)[i] = __float2half_rn(v); break;
    default: static_cast<__nv_bfloat16*>(p.y)[i] = __float2bfloat16_rn(v);
  }
}

}  // namespace aoext::cuda
