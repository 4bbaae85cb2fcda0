// Arithmetic of sizes.
#pragma once

#include <cstdint>

namespace aoext {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace aoext
