// Scales of blocks as float32, whatever their type: fp32, bf16, fp16, e8m0 or e4m3.
#pragma once

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda {

// e8m0, 2^(u - 127): 0 is a subnormal number, 255 is NaN.
__device__ __forceinline__ float power_of_exponent(uint32_t u) {
  return __uint_as_float(u == 255 ? 0x7fffffffu : u == 0 ? 0x00400000u : u << 23);
}

__device__ __forceinline__ float float_of_e4m3(uint32_t byte) {
  return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(byte, 0)));
}

// A scale from its bits, the lowest ones of a word.
__device__ __forceinline__ float scale_of_bits(uint32_t word, Element type) {
  switch (type) {
    case Element::fp32: return __uint_as_float(word);
    case Element::bf16: return __uint_as_float(word << 16);
    case Element::fp16: return __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
    case Element::e8m0: return power_of_exponent(word & 0xff);
    default: return float_of_e4m3(word & 0xff);
  }
}

// Its bits, for scale_of_bits.
__device__ __forceinline__ uint32_t load_scale_bits(const void* p, int64_t i, Element type) {
  switch (type) {
    case Element::fp32: return static_cast<const uint32_t*>(p)[i];
    case Element::bf16:
    case Element::fp16: return static_cast<const uint16_t*>(p)[i];
    default: return static_cast<const uint8_t*>(p)[i];
  }
}

// The same of several, with one switch: `at` says where scale i is, or is negative where there is none.
template <int kCount, class At>
__device__ __forceinline__ void load_scale_bits(const void* p, Element type, uint32_t (&bits)[kCount], At&& at) {
  const auto load = [&](auto number) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (const int64_t from = at(i); from >= 0) bits[i] = static_cast<const decltype(number)*>(p)[from];
  };
  switch (type) {
    case Element::fp32: load(uint32_t()); break;
    case Element::bf16:
    case Element::fp16: load(uint16_t()); break;
    default: load(uint8_t());
  }
}

template <int kCount>
__device__ __forceinline__ void scales_of_bits(const uint32_t (&bits)[kCount], Element type, float (&scales)[kCount]) {
  const auto convert = [&](auto constant) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scales[i] = scale_of_bits(bits[i], decltype(constant)::value);
  };
  switch (type) {
    case Element::fp32: convert(std::integral_constant<Element, Element::fp32>()); break;
    case Element::bf16: convert(std::integral_constant<Element, Element::bf16>()); break;
    case Element::fp16: convert(std::integral_constant<Element, Element::fp16>()); break;
    case Element::e8m0: convert(std::integral_constant<Element, Element::e8m0>()); break;
    default: convert(std::integral_constant<Element, Element::e4m3>());
  }
}

// Both at once, with one switch.
__device__ __forceinline__ float load_scale(const void* p, int64_t i, Element type) {
  switch (type) {
    case Element::e8m0: return power_of_exponent(static_cast<const uint8_t*>(p)[i]);
    case Element::e4m3: return float_of_e4m3(static_cast<const uint8_t*>(p)[i]);
    default: return load_float(p, i, type);
  }
}

}  // namespace aoext::cuda
