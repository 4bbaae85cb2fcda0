// The element types of memory, as host code and kernels name them to each other.
#pragma once

namespace aoext::cuda {

enum class Element : int { bf16, fp16, fp32, int8, e4m3, e5m2, int32 };

}  // namespace aoext::cuda
