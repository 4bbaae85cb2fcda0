// Weight-only int4 of experts for few rows of each: int4_ring.cuh, with blocks for each tile of rows. Deterministic; needs no
// workspace; may be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/kernels/int4_ring.h"

namespace aoext::cuda {

// For a tile of rows; `blocks` along n are each tile's.
struct GroupedRingConfig : RingConfig {
  int block_m;  // rows of a tile at most: 1 or 8

  bool operator==(const GroupedRingConfig&) const = default;
};

// K and group_size multiples of 32, x and weight at 16-byte alignment, and so few rows that a grid holds them.
bool int4_grouped_ring_takes(const GroupedInt4Linear& p);
Choice<GroupedRingConfig> choose_int4_grouped_ring(const GroupedInt4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_grouped_ring_fits(const GroupedInt4Linear& p, const GroupedRingConfig& c);
cudaError_t launch_int4_grouped_ring(const GroupedInt4Linear& p, const GroupedRingConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_grouped_ring_instances();
std::string int4_grouped_ring_instance(const GroupedInt4Linear& p, const GroupedRingConfig& c);

}  // namespace aoext::cuda
