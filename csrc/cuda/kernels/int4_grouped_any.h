// Weight-only int4 of experts, of any shape, group, type and alignment.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/int4.h"

namespace aoext::cuda {

// K is even and below 2³¹.
cudaError_t launch_int4_grouped_any(const GroupedInt4Linear& p, cudaStream_t stream);

}  // namespace aoext::cuda
