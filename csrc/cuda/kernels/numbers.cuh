// Numbers of the types that an Element names, in float32 and out of it; nibbles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/element.h"

namespace aoext::cuda {

template <class S>
__device__ __forceinline__ float to_float(S v) {
  if constexpr (std::is_same_v<S, float>)
    return v;
  else if constexpr (std::is_same_v<S, __half>)
    return __half2float(v);
  else
    return __bfloat162float(v);
}

template <class X>
__device__ __forceinline__ X rounded(float v) {
  if constexpr (std::is_same_v<X, float>)
    return v;
  else if constexpr (std::is_same_v<X, __half>)
    return __float2half_rn(v);
  else
    return __float2bfloat16_rn(v);
}

// The same bits as another type.
template <class To, class From>
__device__ __forceinline__ To bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  return *reinterpret_cast<To*>(&v);
}

// Two numbers as neighbours of X, bf16 or fp16, the first in the lower half.
template <class X>
__device__ __forceinline__ uint32_t rounded_pair(float low, float high) {
  if constexpr (std::is_same_v<X, __half>)
    return bits<uint32_t>(__floats2half2_rn(low, high));
  else
    return bits<uint32_t>(__floats2bfloat162_rn(low, high));
}

__device__ __forceinline__ float load_float(const void* p, int64_t i, Element type) {
  return type == Element::fp32   ? static_cast<const float*>(p)[i]
         : type == Element::fp16 ? to_float(static_cast<const __half*>(p)[i])
                                 : to_float(static_cast<const __nv_bfloat16*>(p)[i]);
}

// Signed nibble j of a word.
__device__ __forceinline__ float nibble(uint32_t word, int j) {
  return static_cast<float>(static_cast<int32_t>(word << (28 - 4 * j)) >> 28);
}

}  // namespace aoext::cuda
