// What kernels of scaled.h share: a scale as a float32, and an output.
#pragma once

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/scaled.h"

namespace aoext::cuda {

// 2^(u - 127): 0 is a subnormal number, 255 is NaN.
__device__ __forceinline__ float power_of_exponent(uint32_t u) {
  return __uint_as_float(u == 255 ? 0x7fffffffu : u == 0 ? 0x00400000u : u << 23);
}

__device__ __forceinline__ float load_scale(const void* p, int64_t i, Element type) {
  switch (type) {
    case Element::e8m0: return power_of_exponent(static_cast<const uint8_t*>(p)[i]);
    case Element::e4m3:
      return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(static_cast<const uint8_t*>(p)[i], 0)));
    default: return load_float(p, i, type);
  }
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
