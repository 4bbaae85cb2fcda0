// int4 weights to high precision.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

// out[N, K] = q · scale + zero_point: raw device memory, contiguous, not empty; the layout of Int4Linear.
struct DequantizeInt4 {
  const uint8_t* weight;   // [N, K/2]
  const void* scale;       // [K/group_size, N] of `scale_type`
  const void* zero_point;  // likewise
  void* out;               // [N, K] of `type`
  int64_t N, K, group_size;
  Element type, scale_type;
};

// K is even and below 2³¹.
cudaError_t launch_dequantize_int4(const DequantizeInt4& p, cudaStream_t stream);

}  // namespace aoext::cuda
