// The element types of memory, as host code and kernels name them to each other.
#pragma once

namespace aoext::cuda {

// e8m0: 2^(u - 127) of a byte u, NaN of 255. lut4: an index of four bits into a table of 16 numbers, two to a byte.
enum class Element : int { bf16, fp16, fp32, int8, e4m3, e5m2, int32, e8m0, lut4 };

}  // namespace aoext::cuda
