// The product with a weight in the tinygemm layout, by kernels/int4pack_mm.cpp: one body for the operator and for the library of
// csrc/int4pack_shim/, so that both give the same bits. It knows nothing of torch.
#pragma once

#include <cstdint>

#include <sycl/sycl.hpp>

#include "sycl/device.h"

namespace aoext::xpu {

constexpr int kInt4PackInputAlignment = 8;  // bytes

// y[M, N] = x[M, K] · wᵀ: bfloat16, contiguous, nothing empty; K below kMaxAnyDepth (kernels/shape.h).
struct Int4PackLinear {
  void* y;
  const void* x;               // at a multiple of kInt4PackInputAlignment
  const void* weight;          // int32 [N/8, K/(16 · inner_k_tiles), 32, inner_k_tiles/2]
  const void* scale_and_zero;  // [K/group_size, N, 2]
  int64_t M, N, K, group_size, inner_k_tiles;
};

struct Int4PackPlan {
  int rows;        // of y that a work-group computes: 1, 4 or 8
  int sub_groups;  // that split K
};

Int4PackPlan plan_int4pack(const Int4PackLinear& linear, const Device& device);

void launch_int4pack(sycl::queue& queue, const Int4PackPlan& plan, const Int4PackLinear& linear);

}  // namespace aoext::xpu
