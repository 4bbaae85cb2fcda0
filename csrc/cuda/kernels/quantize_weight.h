// Weights to codes, scales and zero points, by the rules of python/aoext/packing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

// What a launch tells, in the order of common/quantize_weight.h.
struct WeightStatusWords {
  uint32_t differs, refused, asymmetric, largest;
};

// x [N, K], whose rows lie `pitch` elements apart, becomes the weight; int4, int8, e4m3, e5m2 or lut4.
struct QuantizeWeight {
  const void* x;
  int64_t pitch, N, K;
  Element type;         // of x
  void *codes, *scale;  // blocks' scales row by row; of int4 [K/block_k, N]
  void* zero_point;     // of int4
  const float* table;   // of lut4
  float* global_scale;  // of lut4 with scales of e4m3, or null
  Element code, scale_type;
  int64_t block_n, block_k;  // no larger than the weight
  int symmetric;             // of int4: 0, 1, or -1: as the zero points that are there are
  bool keep;                 // a weight that holds x already, but for rtol and atol, stays as it is
  bool check;                // one that is refused stays as it is; otherwise its blocks with NaN or Inf become NaN
  float rtol, atol;
  WeightStatusWords* status;
};

// Whether the kernels take it: K below 2³¹, and blocks of whole bytes.
bool quantize_weight_takes(const QuantizeWeight& p);

cudaError_t launch_quantize_weight(const QuantizeWeight& p, int multiprocessors, cudaStream_t stream);

}  // namespace aoext::cuda
