// Products of scaled.h by wgmma: kernels/sm90a/scaled_wgmma.cuh.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/scaled.h"
#include "cuda/kernels/wgmma_config.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Whether the kernel computes this problem: x of e4m3 or int8 and a result of 16 bits, rows of a multiple of 16 bytes, everything
// 16-byte aligned. Of w of 8 bits blocks of multiples of 64 rows by 128 k, whatever the scales are, or of 32 k with scales of
// float32 or, of exactly 32 k, exponents; of int4 groups of multiples of 32 k with scales of 16 or 32 bits, N a multiple of 8.
bool scaled_wgmma_takes(const ScaledLinear& p);

Choice<WgmmaConfig> choose_scaled_wgmma(const ScaledLinear& p, const Device& device);
bool scaled_wgmma_fits(const ScaledLinear& p, const WgmmaConfig& c);
// How sums of x lie that int4 needs.
ChunkSums scaled_sums(const ScaledLinear& p);
// The pitch that the kernel wants of scales of x; 0: as rows have them. It lays them out itself where they come otherwise.
int64_t scaled_wgmma_pitch(const ScaledLinear& p, const WgmmaConfig& c);
size_t scaled_wgmma_workspace(const ScaledLinear& p, const WgmmaConfig& c);  // bytes
cudaError_t launch_scaled_wgmma(const ScaledLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string scaled_wgmma_instances();
std::string scaled_wgmma_instance(const ScaledLinear& p, const WgmmaConfig& c);

}  // namespace aoext::cuda
