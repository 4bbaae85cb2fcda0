// Weight-only int4 for few rows of x: what int4_ring.cuh computes. Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>
#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/int4.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// M <= 16, K and group_size multiples of 32, x and weight at 16-byte alignment; x of 8 bits of as many rows as follow.
constexpr int64_t kRingCodesRows = 8;
bool int4_ring_takes(const Int4Linear& p);

// How a launch is cut. A block has tiles * k_splits warps; a warp takes warp_tiles tiles of 16 output channels and a k-split of
// their k-tiles.
struct RingConfig {
  int warp_tiles;  // 1 or 2
  int depth;       // stages of 2 KB in a warp's ring: 2 or 3
  int tiles, k_splits;
  int cluster;        // blocks that share K: 1, or 2, 4, 8 on Hopper
  int blocks;         // along n; each takes groups of tiles until none is left
  int shared_memory;  // bytes that a block may take: how much of x is in shared memory at a time
  int ahead;          // bytes of each output channel that are prefetched into L2 while the last kernel ends, on Hopper
  int overlaps;       // whether it may start while the last kernel ends (launch.h), on Hopper

  bool operator==(const RingConfig&) const = default;
};

// What the model of its time (cuda/fits.h) says is fastest.
Choice<RingConfig> choose_int4_ring(const Int4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_ring_fits(const Int4Linear& p, const RingConfig& c);

// cudaErrorInvalidValue for a config that does not fit the problem or the device.
cudaError_t launch_int4_ring(const Int4Linear& p, const RingConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_ring_instances();
std::string int4_ring_instance(const Int4Linear& p, const RingConfig& c);

}  // namespace aoext::cuda
