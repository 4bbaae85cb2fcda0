// Arithmetic of sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/portability.h"

namespace aoext {

// Sizes are not negative, and b may be anything above 0: a caller's block may be larger than all that there is.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// No memory holds more elements. What loops and launches multiply, two sizes and the bytes, rows and columns of a tile, then fits
// into an int64_t.
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr const char* kCountable = "of at most 2^48 elements, with a size of 0 counted as 1";

// Whether these sizes, none negative, multiply to so few elements, and so do those of them that are not 0.
inline bool is_countable(const int64_t* sizes, int64_t dim) {
  int64_t count = 1;
  for (int64_t d = 0; d < dim; ++d)
    if (mul_overflow(count, std::max<int64_t>(sizes[d], 1), &count) || count > kMostElements) return false;
  return true;
}

}  // namespace aoext
