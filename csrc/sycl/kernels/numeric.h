// Conversions of float to and from what kernels load and store.
//
// bfloat16 and float8 are passed as raw bits. SYCL's own bfloat16 imports a device library, which the CPU device
// cannot link and which makes stack calls on GPUs.
#pragma once

#include <sycl/sycl.hpp>

#include "common/element.h"

namespace aoext::xpu {

inline float bf16_to_float(uint16_t bits) { return sycl::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// To nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = sycl::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16, nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);  // a select: a branch would diverge
}

inline float fp16_to_float(uint16_t bits) { return static_cast<float>(sycl::bit_cast<sycl::half>(bits)); }

inline uint16_t float_to_fp16(float value) { return sycl::bit_cast<uint16_t>(static_cast<sycl::half>(value)); }

// The width of an element in memory.
constexpr int bits_of(Element type) {
  switch (type) {
    case Element::fp32:
    case Element::int32: return 32;
    case Element::bf16:
    case Element::fp16: return 16;
    case Element::int4:
    case Element::lut4: return 4;
    default: return 8;
  }
}

// Element `i` of an array of bf16, fp16 or fp32. The type is uniform, so the branch costs a scalar compare.
inline float load_float(const void* data, int64_t i, Element type) {
  if (type == Element::fp32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == Element::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

inline void store_float(void* data, int64_t i, Element type, float value) {
  if (type == Element::fp32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = type == Element::bf16 ? float_to_bf16(value) : float_to_fp16(value);
  }
}

}  // namespace aoext::xpu
