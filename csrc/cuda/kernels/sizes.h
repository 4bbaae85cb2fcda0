// What kernels and their launchers count and compare with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"
#include "common/sizes.h"

namespace aoext::cuda {

// The bytes of an element that has whole ones.
__host__ __device__ constexpr int bytes_of(Element e) {
  switch (e) {
    case Element::fp32:
    case Element::int32: return 4;
    case Element::bf16:
    case Element::fp16: return 2;
    default: return 1;
  }
}

// Whether an address is a multiple of so many bytes.
inline bool is_aligned(const void* p, int bytes = 16) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace aoext::cuda
