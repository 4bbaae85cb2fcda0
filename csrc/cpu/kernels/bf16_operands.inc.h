// Which rows of x operands of bfloat16 hold, as they are and as two limbs. Those that they do not hold go by float32.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kOneLimb = 1, kTwoLimbs = 2;

// Not rows whose sums of x by 31, or of x alone, might leave float32's range where those by weights do not.
bool accepts_bf16(Element from, const void* row, int64_t K) {
  if (from == Element::e4m3) return true;
  constexpr uint32_t kExponent = 0x7fff, kMost = (127 + 100) << 7;  // 2¹⁰⁰
  const uint16_t* const x = static_cast<const uint16_t*>(row);
  uint16_t most = 0;
  for (int64_t k = 0; k < K; ++k) {
    const uint16_t magnitude = x[k] & kExponent;
    most = magnitude > most ? magnitude : most;
  }
  return most < kMost;
}

// Rows whose limbs are neither infinite nor, but for what is far below the rest, subnormal. By int4 the largest x may be kWidest
// times the mean of those about it: what the limbs lose of it meets q, and shows where scale and zero point make a weight of 0.
template <bool kInt4>
bool accepts_limbs(Element from, const void* row, int64_t K) {
  constexpr float kWidest = 32;
  constexpr uint32_t kLeast = (127 - 100) << 23, kMost = (127 + 100) << 23;  // 2⁻¹⁰⁰, 2¹⁰⁰
  const int64_t bytes = from == Element::fp32 ? 4 : 2;
  uint32_t largest = 0;
  for (int64_t k = 0; k < K; k += kPad) {
    const int64_t n = K - k < kPad ? K - k : kPad;
    alignas(kLine) float x[kPad] = {};
    to_float(from, static_cast<const char*>(row) + k * bytes, x, n);
    U32 most = {};
    F32 sizes = {};
    for (int64_t i = 0; i < kPad; i += kFloats) {
      const F32 size = magnitude(load<F32>(x + i));
      most = (U32)size > most ? (U32)size : most;
      sizes += size;
    }
    uint32_t here = 0;
    for (int i = 0; i < kFloats; ++i) here = most[i] > here ? most[i] : here;
    if (kInt4 && !(from_bits(here) * static_cast<float>(n) <= kWidest * sum<float>(sizes))) return false;
    largest = here > largest ? here : largest;
  }
  return largest == 0 || (largest >= kLeast && largest < kMost);
}

constexpr bool kByInt4 = true, kBy8Bit = false;

}  // namespace
}  // namespace aoext::cpu
