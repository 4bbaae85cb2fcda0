// The element types of memory, as host and kernels name them to each other.
#pragma once

namespace aoext::xpu {

enum Element : int { kBf16, kFp16, kFp32, kInt8, kE4m3, kE5m2, kInt32, kE8m0, kLut4 };

}  // namespace aoext::xpu
