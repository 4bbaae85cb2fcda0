// Weight-only int4 as its kernels see it: raw device memory, everything contiguous, nothing empty.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] + bias[N] with w = q · scale + zero_point; see docs/operators.md for the layout.
struct Int4Linear {
  const void* x;           // [M, K] of `code` or, if it quantizes, of `type`
  const uint8_t* weight;   // [N, K/2], the even k in the low nibble, nibbles signed
  const void* scale;       // [K/group_size, N] of `scale_type`
  const void* zero_point;  // likewise
  const void* bias;        // [N] of `bias_type`, or null
  void* y;                 // [M, N] of `type`
  int64_t M, N, K, group_size;
  Element type, scale_type, bias_type;
  // What x is multiplied as: `type`, or codes of 8 bits, int8 or e4m3, which int4_ring, int4_decode and int4_batch know. The last
  // may quantise x to them first, as quantize_rowwise.h says, which gives row_scale, too.
  Element code;
  bool quantizes;
  const float* row_scale;  // [M], or null; all but int4_any know it
  // A product for each expert has these, others null and 0: weight, scale, zero_point and bias have a first dimension [experts]
  // more, and M counts the rows of all. The rows of expert e end before row ends[e]; y is zero behind the last.
  const int32_t* ends;  // [experts], in device memory
  int64_t experts;
};

// Whether the kernels for few rows of x can count the bytes of scales, and of their rows of w, in 32 bits.
inline bool few_rows_counts(const Int4Linear& p) { return p.N < int64_t{1} << 29 && p.K < int64_t{1} << 25; }

}  // namespace aoext::cuda
