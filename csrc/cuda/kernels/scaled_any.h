// Products of scaled.h of any shape, type, block and alignment.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/scaled.h"

namespace aoext::cuda {

// K is below 2³¹.
cudaError_t launch_scaled_any(const ScaledLinear& p, cudaStream_t stream);

}  // namespace aoext::cuda
