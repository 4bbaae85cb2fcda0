// Dynamic quantisation, a scale for each block of a row.
#pragma once

#include "cuda/kernels/quantize_rowwise.h"

namespace aoext::cuda {

// As QuantizeRowwise for each `block` elements of a row, the last of which may be fewer. Its scale is at m · scale_m + i ·
// scale_k for block i of row m.
struct QuantizeBlockwise : QuantizeRowwise {
  int64_t block, scale_m, scale_k;
  bool power_of_two;  // scales are rounded up to one
};

// K is below 2³¹.
cudaError_t launch_quantize_blockwise(const QuantizeBlockwise& p, cudaStream_t stream);

}  // namespace aoext::cuda
