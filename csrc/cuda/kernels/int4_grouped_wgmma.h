// The int4 product of experts by wgmma: kernels/sm90a/weight_only_wgmma.cuh with int4_wgmma.cuh and GroupedScheduler.
#pragma once

#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/int4.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// How it is cut into tiles, which blocks take in turns (tile_scheduler.h).
struct GroupedWgmmaConfig {
  int block_n, block_m;  // output channels and rows of x of a tile
  int blocks;            // that run at once

  bool operator==(const GroupedWgmmaConfig&) const = default;
};

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
bool int4_grouped_wgmma_takes(const GroupedInt4Linear& p);
Choice<GroupedWgmmaConfig> choose_int4_grouped_wgmma(const GroupedInt4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it.
bool int4_grouped_wgmma_fits(const GroupedInt4Linear& p, const GroupedWgmmaConfig& config);
cudaError_t launch_int4_grouped_wgmma(const GroupedInt4Linear& p, const GroupedWgmmaConfig& config, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_grouped_wgmma_instances();
std::string int4_grouped_wgmma_instance(const GroupedInt4Linear& p, const GroupedWgmmaConfig& c);

}  // namespace aoext::cuda
