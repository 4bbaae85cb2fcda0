// Scales of a block: bf16, fp16, float32, or in a byte e4m3, or e8m0, the exponent of a power of two.
#pragma once

#include "float8.h"

namespace aoext::xpu {

// 2^(code - 127) by float32's bits: 0 is the subnormal 2^-127, 255 NaN.
inline float e8m0_to_float(uint32_t code) {
  return sycl::bit_cast<float>(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23);
}

// Scale `i` of an array; the type is uniform, so branches cost a scalar compare.
inline float load_scale(const void* data, int64_t i, Element type) {
  if (type == Element::e8m0) return e8m0_to_float(static_cast<const uint8_t*>(data)[i]);
  if (type == Element::e4m3) return e4m3_to_float(static_cast<const uint8_t*>(data)[i]);
  return load_float(data, i, type);
}

}  // namespace aoext::xpu
