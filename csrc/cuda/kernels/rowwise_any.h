// Products of rowwise.h of any shape, type and alignment.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

// K is below 2³¹.
cudaError_t launch_rowwise_any(const RowwiseLinear& p, cudaStream_t stream);

}  // namespace aoext::cuda
