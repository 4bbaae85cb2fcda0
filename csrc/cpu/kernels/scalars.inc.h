// Single numbers of each format to float and back, and rows of them by loops that the compiler turns into vectors.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

// ---- high precision formats ----------------------------------------------------------------------------

inline float bf16_to_float(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }

inline uint16_t float_to_bf16(float f) {
  const uint32_t u = bits(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((u & kMagnitude) > kInfinity ? (u >> 16) | 0x40u : rounded);
}

// Subnormal halves by an exact float subtraction (0.5 + m·2⁻²⁴ − 0.5), which no flush-to-zero mode can touch.
inline float f16_to_float(uint16_t h) {
  const uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t infinite = normal + (112u << 23);
  const uint32_t subnormal = bits(from_bits(magnitude + (126u << 23)) - 0.5f);
  return from_bits(sign | (magnitude >= 0x7c00u ? infinite : magnitude >= 0x0400u ? normal : subnormal));
}

inline uint16_t float_to_f16(float f) {
  const uint32_t u = bits(f), magnitude = u & kMagnitude;
  const uint32_t subnormal = bits(from_bits(magnitude) + 0.5f) - (126u << 23);  // ulp of 0.5 is 2⁻²⁴
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal > 0x7c00u ? 0x7c00u : normal;
  const uint32_t h = magnitude > kInfinity ? 0x7e00u : magnitude >= (143u << 23) ? 0x7c00u : finite;
  return static_cast<uint16_t>(h | ((u & kSign) >> 16));
}

// ---- float8 --------------------------------------------------------------------------------------------

// An 8-bit float is a half (e5m2) or a half shifted by one exponent bit (e4m3: times 2⁻⁸), NaN apart.
inline float e5m2_to_float(uint8_t b) { return f16_to_float(static_cast<uint16_t>(b << 8)); }

inline float e4m3_to_float(uint8_t b) {
  const float value = f16_to_float(static_cast<uint16_t>(((b & 0x80) << 8) | ((b & 0x7f) << 7))) * 256.0f;
  return (b & 0x7f) == 0x7f ? from_bits(0x7fc00000u) : value;
}

// 2^(u − 127) by the bits of float32: 0 is 2⁻¹²⁷, a subnormal number, and 255 is NaN. Without branches: rows become vectors.
inline float e8m0_to_float(uint8_t u) {
  const uint32_t is_edge = static_cast<uint32_t>(u == 0) | static_cast<uint32_t>(u == 255);
  return from_bits(static_cast<uint32_t>(u) << 23 | is_edge << 22);
}

// ---- conversions of rows -------------------------------------------------------------------------------

template <class T, float (*convert)(T)>
inline void row_to_float(const void* source, float* out, int64_t n) {
  const T* s = static_cast<const T*>(source);
  for (int64_t i = 0; i < n; ++i) out[i] = convert(s[i]);
}

template <class T, T (*convert)(float)>
inline void row_from_float(const float* source, void* out, int64_t n) {
  T* o = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = convert(source[i]);
}

inline float identity(float f) { return f; }
inline float i8_to_float(int8_t i) { return static_cast<float>(i); }
inline float i32_to_float(int32_t i) { return static_cast<float>(i); }

// ---- int4 ----------------------------------------------------------------------------------------------

// A nibble's two's complement value: the XOR moves −8..7 to 0..15 in order, the subtraction moves it back.
inline int8_t sign_extend(int nibble) { return static_cast<int8_t>((nibble ^ 8) - 8); }

}  // namespace
}  // namespace aoext::cpu
