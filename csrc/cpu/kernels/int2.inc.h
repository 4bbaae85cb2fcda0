// Codes of 2 bits as nibbles, which are int4's of the same value: every kernel of int4 multiplies them then. A byte becomes two,
// by a shift and a mask for each halving of what lies together: 3210 to 32 10, then to 3 2 1 0.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

inline void widen_int2(const uint8_t* packed, int64_t bytes, uint8_t* nibbles) {
  constexpr int64_t kStep = 2 * kFloats;
  using Narrow = uint8_t AOEXT_VECTOR(kStep);
  using Wide = uint16_t AOEXT_VECTOR(2 * kStep);
  const auto widened = [](auto v) {
    v = (v | v << 4) & 0x0f0f;
    return (v | v << 2) & 0x3333;
  };
  int64_t i = 0;
  for (; i + kStep <= bytes; i += kStep) store(nibbles + 2 * i, widened(__builtin_convertvector(load<Narrow>(packed + i), Wide)));
  for (; i < bytes; ++i) {
    const int two = widened(static_cast<int>(packed[i]));
    nibbles[2 * i] = static_cast<uint8_t>(two);
    nibbles[2 * i + 1] = static_cast<uint8_t>(two >> 8);
  }
}

}  // namespace
}  // namespace aoext::cpu
