// Weights with a scale a block to high precision.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

// out[N, K] = ((value(code[n, k]) − zero) · scale[n / block_n, k / block_k]) · global_scale: raw device memory, contiguous, not
// empty; the layout of BlockLinear.
struct DequantizeBlocks {
  const uint8_t* weight;      // [N, K] of int8, e4m3 or e5m2, or [N, K/2] of lut4
  const void* scale;          // [ceil(N / block_n), ceil(K / block_k)] of `scale_type`
  const int8_t* zero;         // of scale's shape, or null
  const float* table;         // [16] of lut4
  const float* global_scale;  // [1] or null
  void* out;                  // [N, K] of `type`
  int64_t N, K, block_n, block_k;
  Element weight_type, type, scale_type;
};

// K is below 2³¹.
cudaError_t launch_dequantize_blocks(const DequantizeBlocks& p, cudaStream_t stream);

}  // namespace aoext::cuda
