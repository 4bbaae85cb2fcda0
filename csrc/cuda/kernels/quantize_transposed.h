// Dynamic quantisation of a matrix that is read by columns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

// As QuantizeRowwise or QuantizeBlockwise of x [M, K], which lies as its transpose: raw device memory, not empty.
struct QuantizeTransposed {
  const void* x;     // [K, M] of `type`: bf16, fp16 or fp32, a row every `pitch` elements
  void* values;      // [M, K] of `output`: int8, e4m3 or e5m2, contiguous
  float* scales;     // [M], or [M, ceil(K / block)]
  uint32_t* absmax;  // [M] zeros to work with, where blocks are whole rows
  int64_t M, K, pitch, block;
  bool power_of_two;
  Element type, output;
};

// The k of a block that is no whole row.
constexpr int64_t kTransposedBlock = 128;

// Whether the kernel takes these sizes and where x starts.
bool quantize_transposed_takes(const QuantizeTransposed& p);

cudaError_t launch_quantize_transposed(const QuantizeTransposed& p, cudaStream_t stream);

}  // namespace aoext::cuda
