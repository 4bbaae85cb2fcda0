// What AVX-512 has instructions for, by way of floats: for the instruction sets below it.
#pragma once

#include "cpu/kernels/int4.inc.h"

namespace aoext::cpu {
namespace {

inline F32 nibble(U32 words, int i) { return __builtin_convertvector((I32)(words << (28 - 4 * i)) >> 28, F32); }

inline void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, uint16_t* out) {
  float values[kNibbles];
  for (int64_t k = 0; k < n; k += kNibbles) {
    dequantize_group(packed + k / 2, kNibbles, s, z, values);
    row_from_float<uint16_t, float_to_bf16>(values, out + k, kNibbles);
  }
}

template <Element kType>
inline int64_t values_to_bf16(const void*, uint16_t*, int64_t) {
  return 0;
}

}  // namespace
}  // namespace aoext::cpu
