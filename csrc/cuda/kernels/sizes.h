// What the host's side of kernels counts and compares with.
#pragma once

#include <cstdint>

#include "common/sizes.h"

namespace aoext::cuda {

// Whether an address is a multiple of so many bytes.
inline bool is_aligned(const void* p, int bytes = 16) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace aoext::cuda
