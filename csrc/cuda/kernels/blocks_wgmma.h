// Weight-only products by wgmma with a scale a block of w, from 17 rows of x on: kernels/sm90a/blocks_wgmma.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/wgmma_config.h"
#include "cuda/properties.h"

namespace aoext::cuda {

struct BlocksWgmmaConfig : WgmmaConfig {
  bool operator==(const BlocksWgmmaConfig&) const = default;
};

// Whether the kernel reads a problem of these sizes at all: int8 and e4m3 in blocks of a multiple of 32 along k, lut4 of 16, or
// of all of K. It also wants a 16-byte alignment of x, weight and y.
bool blocks_wgmma_takes(const BlockLinear& p);
BlocksWgmmaConfig choose_blocks_wgmma(const BlockLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool blocks_wgmma_fits(const BlockLinear& p, const BlocksWgmmaConfig& config);
size_t blocks_wgmma_workspace(const BlockLinear& p, const BlocksWgmmaConfig& config);  // bytes
cudaError_t launch_blocks_wgmma(const BlockLinear& p, const BlocksWgmmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string blocks_wgmma_instances();
std::string blocks_wgmma_instance(const BlockLinear& p, const BlocksWgmmaConfig& c);

}  // namespace aoext::cuda
