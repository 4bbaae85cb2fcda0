// 8-bit numbers to 16-bit ones, four at a time, exact; NaN and Inf stay what they are.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda {
namespace eight_bit {

__device__ __forceinline__ __half2 half_pair(uint32_t v) { return bits<__half2>(v); }
__device__ __forceinline__ __nv_bfloat162 bf16_pair(uint32_t v) { return bits<__nv_bfloat162>(v); }

// The upper halves of two floats, which is all of them where they have eight bits of mantissa or fewer.
__device__ __forceinline__ uint32_t upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Bytes 2i and 2i + 1 of a word as fp16.
template <Element W>
__device__ __forceinline__ uint32_t half_pair_of(uint32_t word, int i) {
  if constexpr (W == Element::int8) {
    // 1024 + u in fp16 is 0x6400 + u; u = q + 128.
    const uint32_t biased = __byte_perm(word ^ 0x80808080u, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
    return bits<uint32_t>(__hsub2(half_pair(biased), half_pair(0x64806480u)));
  } else if constexpr (W == Element::e5m2) {
    return __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);  // an fp16 without its lower mantissa
  } else {
#if __CUDA_ARCH__ >= 890
    uint32_t pair;
    asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(pair) : "r"(word >> 16 * i));
    return pair;
#else
    // Its bits in fp16's places make a number 2^-8 times as large, or 1.875 where it is NaN, which alone becomes infinite here.
    const uint32_t high = __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
    const __half2 small = half_pair((high & 0x80008000u) | (high & 0x7f007f00u) >> 1);
    const __half2 infinite_or_not = __hmul2(small, half_pair(0x78807880u));  // 36864
    return bits<uint32_t>(__hfma2(infinite_or_not, half_pair(0), __hmul2(small, half_pair(0x5c005c00u))));
#endif
  }
}

template <Element W>
__device__ __forceinline__ uint32_t bf16_pair_of(uint32_t word, int i) {
  if constexpr (W == Element::int8) {
    // Its lower seven bits are the mantissa of 128 + v; bit 7, worth -128, makes 128 of bf16 to 256: q is their difference.
    const uint32_t bytes = __byte_perm(word, 0, i == 0 ? 0x4140 : 0x4342);
    return bits<uint32_t>(
        __hsub2(bf16_pair(and_xor<0x007f007f, 0x43004300>(bytes)), bf16_pair(and_xor<0x00800080, 0x43004300>(bytes))));
  } else {
    const float2 v = __half22float2(half_pair(half_pair_of<W>(word, i)));
    return upper_halves(v.x, v.y);
  }
}

}  // namespace eight_bit

// Numbers 2i and 2i + 1 of a word as a pair of T, bf16 or fp16.
template <class T, Element W>
__device__ __forceinline__ uint32_t widened_pair(uint32_t word, int i) {
  if constexpr (std::is_same_v<T, __half>)
    return eight_bit::half_pair_of<W>(word, i);
  else
    return eight_bit::bf16_pair_of<W>(word, i);
}

// All four, in their order.
template <class T, Element W>
__device__ __forceinline__ uint2 widened(uint32_t word) {
  return {widened_pair<T, W>(word, 0), widened_pair<T, W>(word, 1)};
}

}  // namespace aoext::cuda
