// Products of blocks.h of any shape, type, block and alignment.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/blocks.h"

namespace aoext::cuda {

// K is below 2³¹.
cudaError_t launch_blocks_any(const BlockLinear& p, cudaStream_t stream);

}  // namespace aoext::cuda
