// Products with 8-bit weights and a scale a row, as their kernels see them: raw device memory, everything contiguous, nothing
// empty.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

// y[m, n] = (sum_k x[m, k] · weight[n, k]) · row_scale[m] · scale[n] + bias[n]. x is 8 bits wide and of the weight's type, or
// bf16, fp16 or fp32. Where x and weight are int8 the sum is an int32, and it is y itself where y is one.
//
// An x of 16 or 32 bits may become one of the weight's type first, as quantize_rowwise.h says, which gives its row_scale, too.
struct RowwiseLinear {
  const void* x;           // [M, K] of `type`
  const void* weight;      // [N, K] of `weight_type`: int8, e4m3 or e5m2
  const float* row_scale;  // [M], or null
  const void* scale;       // [N] of `scale_type`: bf16, fp16 or fp32, or null
  const void* bias;        // [N] of `bias_type`, or null
  void* y;                 // [M, N] of `output`
  int64_t M, N, K;
  Element type, weight_type, scale_type, bias_type, output;
  bool quantizes;  // x first; row_scale is null then
  // A product for each expert has these, others null and 0: weight, its scales and bias have a first dimension [experts] more,
  // and M counts the rows of all. The rows of expert e end before row ends[e]; y is zero behind the last.
  const int32_t* ends;  // [experts], in device memory
  int64_t experts;
};

inline bool is_8bit(Element e) { return e == Element::int8 || e == Element::e4m3 || e == Element::e5m2; }
inline Element multiplied_type(const RowwiseLinear& p) { return p.quantizes ? p.weight_type : p.type; }  // of x

}  // namespace aoext::cuda
