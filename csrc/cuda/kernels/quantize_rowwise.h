// Dynamic quantisation, a scale a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"
#include "cuda/kernels/chunk_sums.h"

namespace aoext::cuda {

// scale = max |x| / limit, values = x / scale, both in float32 with IEEE division: raw device memory, contiguous, not empty.
// `wide`: for a product whose x has 16 bits, the values are not stored as codes, but as the numbers that these stand for.
struct QuantizeRowwise {
  const void* x;  // [M, K] of `type`: bf16, fp16 or fp32
  void* values;   // [M, K] of `output`: int8, e4m3 or e5m2; if `wide` of `type`, 16 bits, and `output` is not e5m2
  float* scales;  // [M]
  int64_t M, K;
  Element type, output;
  bool wide;
  bool power_of_two;  // whether a scale is rounded up to one
  ChunkSums sums;     // of the values, where quantize_rowwise_sums
};

// Whether the kernel can compute sums of chunks, too.
bool quantize_rowwise_sums(const QuantizeRowwise& p);

// K is below 2³¹.
cudaError_t launch_quantize_rowwise(const QuantizeRowwise& p, cudaStream_t stream);

}  // namespace aoext::cuda
