// e2m1, the floats of 4 bits of mxfp4 and nvfp4: a sign above an index into eight magnitudes.
#pragma once

#include <stdint.h>

namespace aoext {

constexpr int kE2m1Sign = 8;
constexpr float kE2m1Magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

// Integers by codes. (No array of the C++ library: instruction sets compile this, see cpu/kernels/kernels.h.)
template <class T>
struct OfE2m1 {
  T values[2 * kE2m1Sign];
};

// Twice the values; of a −0 it is 0.
constexpr OfE2m1<int8_t> kDoubledE2m1 = [] {
  OfE2m1<int8_t> doubled{};
  for (int code = 0; code < kE2m1Sign; ++code) {
    doubled.values[code] = static_cast<int8_t>(2 * kE2m1Magnitudes[code]);
    doubled.values[code + kE2m1Sign] = static_cast<int8_t>(-doubled.values[code]);
  }
  return doubled;
}();

}  // namespace aoext
