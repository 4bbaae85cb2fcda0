#pragma once

#include "common/dispatcher.h"
#include "cuda/plan.h"

namespace aoext::cuda {

// The tensor itself, contiguous and at a multiple of 16 bytes, or a copy that is: views may start anywhere.
inline Tensor aligned(const Tensor& t) {
  const Tensor dense = aten::contiguous(t);
  if (are_aligned({&dense})) return dense;
  const Tensor copy = aten::empty(dense.sizes(), dense.scalar_type(), dense);
  aten::copy_(copy, dense);
  return copy;
}

}  // namespace aoext::cuda
