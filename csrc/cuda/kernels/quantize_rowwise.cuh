// The arithmetic of dynamic quantisation (quantize_rowwise.h), with which every kernel that quantises gives the same bits as
// every other device.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/element.h"
#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda::quantize {

constexpr uint32_t kInfinity = 0x7f800000;

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t w[kWords];
};

// kCount elements of a row; where that is one of 16 bits, the upper half is 0.
template <class T, int kCount>
using Piece = Words<kCount == 1 ? 1 : kCount * static_cast<int>(sizeof(T)) / 4>;

template <class T, int kCount>
__device__ __forceinline__ Piece<T, kCount> load_piece(const T* row, uint32_t i) {
  if constexpr (kCount * sizeof(T) == 2)
    return {{reinterpret_cast<const uint16_t*>(row)[i]}};
  else
    return reinterpret_cast<const Piece<T, kCount>*>(row)[i];
}

// Element j of those that words hold.
template <class T>
__device__ __forceinline__ float element(const uint32_t* words, int j) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(words[j]);
  const uint32_t word = words[j / 2];
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(__ushort_as_half(static_cast<uint16_t>(j % 2 == 0 ? word : word >> 16)));
  else
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000);
}

// The absmax of a piece and `other`, as the bits of a float, where NaN is above infinity.
template <class T, int kWords>
__device__ __forceinline__ uint32_t absmax_of(const Words<kWords>& piece, uint32_t other) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) other = max(other, piece.w[i] & 0x7fffffff);
    return other;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Words<kWords> magnitudes;
#pragma unroll
    for (int i = 0; i < kWords; ++i) magnitudes.w[i] = piece.w[i] & 0x7fff7fff;
    auto* const pairs = reinterpret_cast<Pair*>(magnitudes.w);
#pragma unroll
    for (int i = 1; i < kWords; ++i) pairs[0] = __hmax2_nan(pairs[0], pairs[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) other = max(other, __float_as_uint(element<T>(magnitudes.w, j)));
    return other;
  }
}

template <Element kOutput>
constexpr float kLimit = kOutput == Element::int8   ? 127.0f
                         : kOutput == Element::e4m3 ? 448.0f
                                                    : 57344.0f;

// The scale of a row whose largest magnitude is finite.
template <Element kOutput>
__device__ __forceinline__ float row_scale(float absmax) {
  constexpr float kSmallestNormal = 0x1p-126f;
  return absmax == 0 ? 1.0f : fmaxf(__fdiv_rn(absmax, kLimit<kOutput>), kSmallestNormal);
}

// A positive normal number rounded up to a power of two.
__device__ __forceinline__ float power_of_two_from(float scale) {
  return __uint_as_float((__float_as_uint(scale) + 0x007fffff) & kInfinity);
}

// x / scale as IEEE rounds it, wherever that is above 2^-100: x times a power of two, then by a number in [1, 2).
//
// The power is exact for such x, subnormal ones too. With the divisor's reciprocal to nearest, one correction is enough: all
// numerators and divisors whose quotient comes near the middle of two floats were tried (tools/division_cases.cpp). Zeros keep
// their sign: the remainder is taken as q b - t, which is +0 where it is 0.
struct Division {
  float power, divisor, reciprocal;

  __device__ __forceinline__ explicit Division(float scale) {
    const uint32_t bits = __float_as_uint(scale);
    power = __uint_as_float((254u << 23) - (bits & kInfinity));
    divisor = __uint_as_float((bits & 0x007fffff) | 0x3f800000);
    reciprocal = __frcp_rn(divisor);
  }

  __device__ __forceinline__ float operator()(float x) const {
    const float t = __fmul_rn(x, power), q = __fmul_rn(t, reciprocal);
    return __fmaf_rn(-__fmaf_rn(q, divisor, -t), reciprocal, q);
  }
};

// float32 of a magnitude that rounds to a finite one to float8, to nearest, ties to even.
//
// Adding the power of two whose ulp is the format's step at that magnitude rounds as the format does; below the smallest
// normal number the step stays. What the sum has more than that power counts the steps.
template <Element kOutput>
__device__ __forceinline__ uint32_t encode_float8(float v) {
  constexpr int kDropped = kOutput == Element::e4m3 ? 20 : 21;  // bits of a float32's mantissa
  constexpr uint32_t kSmallest = (127u - (kOutput == Element::e4m3 ? 6 : 14)) << 23;
  const uint32_t exponent = max(__float_as_uint(v) & kInfinity, kSmallest), anchor = exponent + (kDropped << 23);
  const uint32_t steps = __float_as_uint(__fadd_rn(fabsf(v), __uint_as_float(anchor))) - anchor;
  return (steps + ((exponent - kSmallest) >> kDropped)) | (__float_as_uint(v) >> 31 << 7);
}

// Four codes. A quotient is at most two roundings of float32 above the limit, which rounding to the format takes back.
template <Element kOutput>
__device__ __forceinline__ uint32_t encode(const float (&q)[4]) {
  if constexpr (kOutput == Element::int8) {
    constexpr float kUlpIsOne = 0x1.8p23f;
    uint32_t low[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) low[j] = __float_as_uint(__fadd_rn(q[j], kUlpIsOne));
    return __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
  } else {
#if __CUDA_ARCH__ >= 890
    uint32_t codes;
    if constexpr (kOutput == Element::e4m3)
      asm("{.reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
          " mov.b32 %0, {low, high};\n}"
          : "=r"(codes)
          : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]));
    else
      asm("{.reg .b16 low, high;\n cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
          " mov.b32 %0, {low, high};\n}"
          : "=r"(codes)
          : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]));
    return codes;
#else
    uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes |= encode_float8<kOutput>(q[j]) << 8 * j;
    return codes;
#endif
  }
}

// What the largest magnitude of a row, as absmax_of has it, makes of its elements.
template <Element kOutput>
struct Row {
  bool finite;
  float scale;  // a number where the row has Inf or NaN, too
  Division quotient;

  __device__ __forceinline__ explicit Row(uint32_t absmax)
      : finite(absmax < kInfinity), scale(row_scale<kOutput>(bits<float>(absmax))), quotient(scale) {}

  __device__ __forceinline__ Row(uint32_t absmax, bool power_of_two)
      : finite(absmax < kInfinity), scale(row_scale<kOutput>(bits<float>(absmax))), quotient(scale) {
    if (power_of_two) scale = power_of_two_from(scale), quotient = Division(scale);
  }

  __device__ __forceinline__ float stored_scale() const { return finite ? scale : bits<float>(0x7fc00000u); }

  // The codes of a piece.
  template <class T, int kCount>
  __device__ __forceinline__ Words<(kCount + 3) / 4> codes(const Piece<T, kCount>& piece) const {
    Words<(kCount + 3) / 4> codes;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float q[4] = {};
#pragma unroll
      for (int j = 0; j < 4 && j < kCount; ++j) q[j] = quotient(element<T>(piece.w, i + j));
      codes.w[i / 4] = encode<kOutput>(q) & (finite ? 0xffffffff : 0);
    }
    return codes;
  }
};

}  // namespace aoext::cuda::quantize
