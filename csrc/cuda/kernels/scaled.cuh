// What kernels of scaled.h share: scales as float32, and an output.
#pragma once

#include "cuda/kernels/scaled.h"
#include "cuda/kernels/scales.cuh"

namespace aoext::cuda {

__device__ __forceinline__ void store_rounded(const ScaledLinear& p, int64_t m, int64_t n, float v) {
  const int64_t i = m * p.N + n;
  switch (p.output) {
    case Element::fp32: static_cast<float*>(p.y)[i] = v; break;
    case Element::fp16: static_cast<__half*>(p.y)[i] = __float2half_rn(v); break;
    default: static_cast<__nv_bfloat16*>(p.y)[i] = __float2bfloat16_rn(v);
  }
}

}  // namespace aoext::cuda
