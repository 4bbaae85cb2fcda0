// Scales of 8 bits that have scales themselves, as float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aoext::cuda {

// out[e, i] = table[codes[e, i]] · factors[e, i / 256] + offsets[e], the product rounded and then the sum: raw device memory,
// contiguous, not empty.
struct NestedScales {
  const uint8_t* codes;                    // [experts, count]
  const float *table, *factors, *offsets;  // [256], [experts, factors_of_expert], [experts]
  float* out;                              // [experts, count]
  int64_t experts, count, factors_of_expert;
};

cudaError_t launch_nested_scales(const NestedScales& p, cudaStream_t stream);

}  // namespace aoext::cuda
