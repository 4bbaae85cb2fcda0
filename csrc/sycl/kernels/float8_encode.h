// float32 to float8, rounded to nearest, ties to even.
#pragma once

#include <sycl/sycl.hpp>

namespace aoext::xpu {

struct Float8Format {
  int dropped;        // mantissa bits of float32 that the format does not have
  uint32_t smallest;  // its smallest normal number, as float32 bits
};

constexpr Float8Format kE4m3Format{20, (127u - 6) << 23};
constexpr Float8Format kE5m2Format{21, (127u - 14) << 23};

// The code of a magnitude that rounds to a finite one.
//
// Adding the power of two whose ulp is the format's step at that magnitude rounds as the format does; below the
// smallest normal number the step is constant. The sum less that power is the number of steps.
inline uint32_t encode_float8(float magnitude, const Float8Format& format) {
  const uint32_t exponent = sycl::max(sycl::bit_cast<uint32_t>(magnitude) & 0x7F800000u, format.smallest);
  const uint32_t anchor = exponent + (static_cast<uint32_t>(format.dropped) << 23);
  const uint32_t steps = sycl::bit_cast<uint32_t>(magnitude + sycl::bit_cast<float>(anchor)) - anchor;
  return steps + ((exponent - format.smallest) >> format.dropped);
}

}  // namespace aoext::xpu
