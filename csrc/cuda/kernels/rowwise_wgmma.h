// The 8-bit by 8-bit product by wgmma: kernels/sm90a/rowwise_wgmma.cuh.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/kernels/rowwise.h"
#include "cuda/kernels/wgmma_config.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Whether the kernel computes this problem: x and weight of one 8-bit type, rows of a multiple of 16 bytes, everything 16-byte
// aligned; float8 to 16 bits alone, since the engine's sums are not worth more.
bool rowwise_wgmma_takes(const RowwiseLinear& p);

WgmmaConfig choose_rowwise_wgmma(const RowwiseLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool rowwise_wgmma_fits(const RowwiseLinear& p, const WgmmaConfig& config);
cudaError_t launch_rowwise_wgmma(const RowwiseLinear& p, const WgmmaConfig& config, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string rowwise_wgmma_instances();
std::string rowwise_wgmma_instance(const RowwiseLinear& p, const WgmmaConfig& c);

}  // namespace aoext::cuda
