// Launches what a plan for bf16i4bf16_rowwise chose. It knows nothing of torch.
#pragma once

#include <cstddef>

#include "cuda/plan.h"

namespace aoext::cuda {

size_t int4_workspace(const Int4Linear& p, const Int4Plan& plan);  // bytes

// `workspace` may be null where int4_workspace is 0. Not for Generic.
cudaError_t launch_int4(const Int4Linear& p, const Int4Plan& plan, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda
