// Dynamic quantisation, a scale for each block of a row.
#pragma once

#include "cuda/kernels/quantize_rowwise.h"

namespace aoext::cuda {

// As QuantizeRowwise for each `block` elements of a row, the last of which may be fewer; scales are [M, ceil(K / block)].
struct QuantizeBlockwise : QuantizeRowwise {
  int64_t block;
  bool power_of_two;  // scales are rounded up to one
};

// K is below 2³¹.
cudaError_t launch_quantize_blockwise(const QuantizeBlockwise& p, cudaStream_t stream);

}  // namespace aoext::cuda
