// The int4 product by wgmma, from 17 rows of x on: kernels/sm90a/weight_only_wgmma.cuh with int4_wgmma.cuh.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/int4.h"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda {

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
bool int4_wgmma_takes(const Int4Linear& p);
Choice<WgmmaConfig> choose_int4_wgmma(const Int4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_wgmma_fits(const Int4Linear& p, const WgmmaConfig& config);
size_t int4_wgmma_workspace(const Int4Linear& p, const WgmmaConfig& config);  // bytes
cudaError_t launch_int4_wgmma(const Int4Linear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_wgmma_instances();
std::string int4_wgmma_instance(const Int4Linear& p, const WgmmaConfig& c);

}  // namespace aoext::cuda
