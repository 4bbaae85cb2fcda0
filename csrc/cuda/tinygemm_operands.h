#pragma once

#include <cstdint>

#include "common/dispatcher.h"

namespace aoext::cuda {

// The tensor itself, contiguous and at a multiple of 16 bytes, or a copy that is: views may start anywhere.
inline Tensor aligned(const Tensor& t) {
  const Tensor dense = aten::contiguous(t);
  if (reinterpret_cast<uintptr_t>(dense.const_data_ptr()) % 16 == 0) return dense;
  const Tensor copy = aten::empty(dense.sizes(), dense.scalar_type(), dense);
  aten::copy_(copy, dense);
  return copy;
}

}  // namespace aoext::cuda
