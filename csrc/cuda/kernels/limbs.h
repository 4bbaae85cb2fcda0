// An input as limbs of bfloat16, whose sum it is: what kernels of 16 bits take in place of a float32 input, or of one of 8 bits
// that has scales.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

struct Limbs {
  const void* x;       // [M, K] of `type`: fp32, int8 or e4m3
  const float* scale;  // [M, ceil(K / group)], or null
  void* limbs;         // [M, count, K] of bf16, the largest first
  int64_t M, K, group;
  Element type;
  int count;  // up to kLimbs: of as many, x is their sum to the last bit
};

constexpr int kLimbs = 3;

// K is a multiple of 4; x and limbs start at multiples of 16 bytes.
cudaError_t launch_limbs(const Limbs& p, cudaStream_t stream);

}  // namespace aoext::cuda
