// What kernels of blocks.h share: a block's scale as a float32, and what ends a product.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/rowwise.cuh"

namespace aoext::cuda {

// A scale from its bits, the lowest ones of a word.
__device__ __forceinline__ float scale_of_bits(uint32_t bits_of_it, Element type) {
  switch (type) {
    case Element::fp32: return __uint_as_float(bits_of_it);
    case Element::bf16: return __uint_as_float(bits_of_it << 16);
    case Element::fp16: return __half2float(__ushort_as_half(static_cast<unsigned short>(bits_of_it)));
    case Element::e8m0: {
      const uint32_t u = bits_of_it & 0xff;  // 0 is 2^-127, a subnormal
      return __uint_as_float(u == 255 ? 0x7fffffffu : u == 0 ? 0x00400000u : u << 23);
    }
    default: return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(bits_of_it & 0xff, 0)));
  }
}

__device__ __forceinline__ float load_scale(const void* p, int64_t i, Element type) {
  uint32_t v;
  switch (type) {
    case Element::fp32: v = static_cast<const uint32_t*>(p)[i]; break;
    case Element::bf16:
    case Element::fp16: v = static_cast<const uint16_t*>(p)[i]; break;
    default: v = static_cast<const uint8_t*>(p)[i];
  }
  return scale_of_bits(v, type);
}

__device__ __forceinline__ float global_scale(const BlockLinear& p) { return p.global_scale ? *p.global_scale : 1.0f; }

}  // namespace aoext::cuda
