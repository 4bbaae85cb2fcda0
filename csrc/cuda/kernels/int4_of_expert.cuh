// The product of one of the experts of a grouped int4 product.
#pragma once

#include "cuda/kernels/int4.h"

namespace aoext::cuda {

// By its weight; what it has of x and y, and how many rows, stays as it is.
__device__ __forceinline__ Int4Linear of_expert(const Int4Linear& p, int64_t expert) {
  const auto behind = [&](const void* first, int64_t count, Element type) -> const void* {
    return static_cast<const char*>(first) + expert * count * (type == Element::fp32 ? 4 : 2);
  };
  Int4Linear own = p;
  own.weight += expert * (p.N * (p.K / 2));
  own.scale = behind(p.scale, p.K / p.group_size * p.N, p.scale_type);
  own.zero_point = behind(p.zero_point, p.K / p.group_size * p.N, p.scale_type);
  if (p.bias != nullptr) own.bias = behind(p.bias, p.N, p.bias_type);
  return own;
}

}  // namespace aoext::cuda
