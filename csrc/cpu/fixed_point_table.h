// A table of 16 values as integers of 15 bits, for products of integers (kernels/gemv_lut4_i16_avx2.inc.h).
#pragma once

#include <stdint.h>

namespace aoext::cpu {

struct FixedPointTable {
  int16_t integers[16];
  float scale;
  bool is_close;  // whether the integers stand for the values
};

static inline FixedPointTable in_fixed_point(const float* table) {
  // A multiple of 192, of which bitsandbytes' fp4 has 1, 32, 48, …; e2m1 has twelfths.
  constexpr float kMost = 85 * 192;
  // So much of a value, which is far below the rounding of a bfloat16 result. A product of scales must not be subnormal.
  constexpr float kError = 0x1p-11f, kSmallest = 0x1p-8f, kLargest = 0x1p8f;
  FixedPointTable of = {};
  float largest = 0;
  for (int i = 0; i < 16; ++i) {
    const float magnitude = table[i] < 0 ? -table[i] : table[i];
    if (!(magnitude <= kLargest)) return of;
    if (magnitude > largest) largest = magnitude;
  }
  if (largest < kSmallest) return of;
  of.scale = largest / kMost;
  of.is_close = true;
  for (int i = 0; i < 16; ++i) {
    const float steps = table[i] * (kMost / largest);
    of.integers[i] = static_cast<int16_t>(steps < 0 ? steps - 0.5f : steps + 0.5f);
    const float error = steps - static_cast<float>(of.integers[i]);
    of.is_close &= (error < 0 ? -error : error) <= kError * (steps < 0 ? -steps : steps);
  }
  return of;
}

}  // namespace aoext::cpu
