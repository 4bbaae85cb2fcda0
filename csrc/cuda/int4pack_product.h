// Launches what a plan for weight_int4pack_mm chose: one body for the operator and for the library of csrc/int4pack_shim/, so
// that both give the same bits. It knows nothing of torch.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda/plan_tinygemm.h"

namespace aoext::cuda {

// Memory of the device at a multiple of 16 bytes that lives until the stream has come to where it is at the end of the launch; or
// null.
using Allocate = std::function<void*(size_t bytes)>;

// Nothing is empty. Not for Generic.
cudaError_t launch_int4pack(const TinygemmLinear& linear, const TinygemmPlan& plan, const Device& device,
                            const Allocate& allocate, cudaStream_t stream);

}  // namespace aoext::cuda
