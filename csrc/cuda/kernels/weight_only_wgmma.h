// Weight-only products by wgmma, from 17 rows of x on: kernels/sm90a/weight_only_wgmma.cuh. Weights of 8 bits
// here, int4 in int4_wgmma.h.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/kernels/rowwise.h"
#include "cuda/kernels/wgmma_config.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of x, weight and y.
bool weight_only_wgmma_takes(const RowwiseLinear& p);
WgmmaConfig choose_weight_only_wgmma(const RowwiseLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool weight_only_wgmma_fits(const RowwiseLinear& p, const WgmmaConfig& config);
size_t weight_only_wgmma_workspace(const RowwiseLinear& p, const WgmmaConfig& config);  // bytes
cudaError_t launch_weight_only_wgmma(const RowwiseLinear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string weight_only_wgmma_instances();
std::string weight_only_wgmma_instance(const RowwiseLinear& p, const WgmmaConfig& c);

}  // namespace aoext::cuda
