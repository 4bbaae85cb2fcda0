// Weight-only products with a scale a block of w, as their kernels see them: raw device memory, everything contiguous, nothing
// empty.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/rowwise.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w[n, k] = value(code[n, k]) · block_scale[n / block_n, k / block_k] · global_scale. Of
// a RowwiseLinear: x, y and bias, weight [N, K] of 8 bits or [N, K/2] of lut4, the even k in the low nibble; no scales of rows.
struct BlockLinear : RowwiseLinear {
  const void* block_scale;    // [ceil(N / block_n), ceil(K / block_k)] of `block_scale_type`: fp32, bf16, fp16, e8m0 or e4m3
  const float* table;         // [16], of lut4
  const float* global_scale;  // [global_scales], one for all of w or for each expert; or null
  int64_t global_scales;
  int64_t block_n, block_k;
  Element block_scale_type;
  // One for each scale of int8, which is subtracted from its codes; or null. blocks_any alone knows it.
  const int8_t* zero;
};

inline int64_t scale_columns(const BlockLinear& p) { return ceil_div(p.K, p.block_k); }

// Whether kernels that multiply weights by their scales before they multiply by x take scales relative to a larger one, lest
// these are rounded to x's type, or leave its range.
inline bool relative_scales(const BlockLinear& p) {
  if (p.type == Element::fp16) return p.block_scale_type != Element::e4m3 || p.weight_type != Element::lut4;
  return p.block_scale_type == Element::fp32 || p.block_scale_type == Element::fp16;
}

inline int64_t row_bytes(const BlockLinear& p) { return p.weight_type == Element::lut4 ? p.K / 2 : p.K; }  // of the weight

}  // namespace aoext::cuda
