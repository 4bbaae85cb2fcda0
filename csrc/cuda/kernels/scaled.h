// Products of an input of 8 bits whose operands have a scale a block, as their kernels see them: raw device memory, everything
// contiguous, nothing empty.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"
#include "cuda/kernels/chunk_sums.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// y[m, n] = sum_c x_scale[m, c] · (scale[n, c] · sum_k x[m, k] · weight[n, k] + zero[n, c] · sum_k x[m, k]) + bias[n], where c is
// the block that has k: the scales of x have one for x_group of them, those of w for w_group of them and block_n rows.
struct ScaledLinear {
  const void* x;         // [M, K] of `type`: int8, e4m3 or e5m2
  const void* weight;    // [N, K] of `weight_type`: `type`, or int4 [N, K/2], the even k in the low nibble, nibbles signed
  const float* x_scale;  // [M, ceil(K / x_group)] or, with a pitch, [ceil(K / x_group), x_scale_pitch], of scaled_wgmma alone
  const void* scale;     // of `scale_type`: fp32, bf16, fp16, e8m0 or e4m3; that of (n, k) stands at
                         // n / block_n · scale_n + k / w_group · scale_k
  const void* zero;  // likewise, of int4; of int8 codes, from which they are subtracted, which scaled_any alone knows; or null
  const void* bias;  // [N] of `bias_type`, or null
  void* y;           // [M, N] of `output`
  int64_t M, N, K, x_group, w_group, block_n, scale_n, scale_k, x_scale_pitch;
  Element type, scale_type, bias_type, output, weight_type;
  ChunkSums sums;  // of x, as scaled_sums wants them, or null where a launch computes them
  // As in RowwiseLinear; scale and zero have a first dimension [experts] more, too.
  const int32_t* ends;
  int64_t experts;
};

inline bool is_int4(const ScaledLinear& p) { return p.weight_type == Element::int4; }
inline int64_t x_groups(const ScaledLinear& p) { return ceil_div(p.K, p.x_group); }
inline int64_t w_groups(const ScaledLinear& p) { return ceil_div(p.K, p.w_group); }
inline int64_t scale_rows(const ScaledLinear& p) { return ceil_div(p.N, p.block_n); }

}  // namespace aoext::cuda
