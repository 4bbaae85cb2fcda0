// Weight-only int4 for few rows of x: what int4_decode.cuh computes. Deterministic; needs no workspace; may be captured in a
// graph.
#pragma once

#include <cuda_runtime_api.h>
#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/int4.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// M <= 16, N even, group_size a multiple of 64 (of 128 with float32 scales), x and weight at 16-byte alignment, scales at 4.
bool int4_decode_takes(const Int4Linear& p);

// How a launch is cut. A block has tiles * k_splits warps; a warp takes warp_tiles tiles of 16 output channels and a k-split of
// their k-tiles.
struct DecodeConfig {
  int block_m;        // of x, at most: 8 or 16
  int warp_tiles;     // 1 or 2
  int stage_k_tiles;  // k-tiles of 128 k in a stage
  int tiles, k_splits;
  int cluster;        // blocks that share K: 1, or 2, 4, 8 on Hopper
  int blocks;         // along n; each takes groups of tiles until none is left
  int shared_memory;  // bytes that a block may take: how much of x is in shared memory at a time
  int overlaps;       // whether it may start while the last kernel ends (launch.h), on Hopper

  bool operator==(const DecodeConfig&) const = default;
};

// What the model of its time (cuda/fits.h) says is fastest.
Choice<DecodeConfig> choose_int4_decode(const Int4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_decode_fits(const Int4Linear& p, const DecodeConfig& c);

// cudaErrorInvalidValue for a config that does not fit the problem or the device.
cudaError_t launch_int4_decode(const Int4Linear& p, const DecodeConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_decode_instances();
std::string int4_decode_instance(const Int4Linear& p, const DecodeConfig& c);

}  // namespace aoext::cuda
