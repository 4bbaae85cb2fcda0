// e2m1, the floats of 4 bits of mxfp4 and nvfp4: a sign above an index into eight magnitudes.
#pragma once

#include <array>
#include <cstdint>

namespace aoext {

constexpr int kE2m1Sign = 8;
constexpr float kE2m1Magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

// Twice the values by their codes, which are integers; of a −0 it is 0.
constexpr std::array<int8_t, 16> kDoubledE2m1 = [] {
  std::array<int8_t, 16> doubled{};
  for (int code = 0; code < 16; ++code) {
    const int8_t magnitude = static_cast<int8_t>(2 * kE2m1Magnitudes[code % kE2m1Sign]);
    doubled[code] = code < kE2m1Sign ? magnitude : static_cast<int8_t>(-magnitude);
  }
  return doubled;
}();

}  // namespace aoext
