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

// A scale in two steps, for a load that has long to go: its bits in memory, the lowest of a word, and what they stand for.
__device__ __forceinline__ uint32_t load_scale_bits(const void* p, int64_t i, Element type) {
  switch (type) {
    case Element::fp32: return static_cast<const uint32_t*>(p)[i];
    case Element::bf16:
    case Element::fp16: return static_cast<const uint16_t*>(p)[i];
    default: return static_cast<const uint8_t*>(p)[i];
  }
}

__device__ __forceinline__ float scale_of_bits(uint32_t v, Element type) {
  switch (type) {
    case Element::fp32: return __uint_as_float(v);
    case Element::bf16: return __uint_as_float(v << 16);
    case Element::fp16: return __half2float(__ushort_as_half(static_cast<unsigned short>(v)));
    case Element::e8m0: return power_of_exponent(v);
    default: return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(v, 0)));
  }
}

__device__ __forceinline__ float load_scale(const void* p, int64_t i, Element type) {
  return scale_of_bits(load_scale_bits(p, i, type), type);
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
