// Weights in blocks of bytes to high precision.
#pragma once

#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// y[N, K] of `output` = w; p has no x. The weight starts at a multiple of 4 bytes, y at one of 16; K is below 2³¹.
cudaError_t launch_packed_dequantize(const PackedLinear& p, cudaStream_t stream);

}  // namespace aoext::cuda
