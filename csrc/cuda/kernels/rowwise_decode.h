// Products with 8-bit weights for few rows of x: what rowwise_decode.cuh computes. Deterministic; needs no workspace; may be
// captured in a graph.
#pragma once

#include <cuda_runtime_api.h>
#include <string>

#include "cuda/kernels/rowwise.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// M <= 16, K % 16 == 0, K <= 2^27, N <= 2^30, x and weight at 16-byte alignment; x of the weight's type, bf16 or fp16, or one to
// be quantised, of M <= 8.
bool rowwise_decode_takes(const RowwiseLinear& p);

// How a launch is cut. A block has tiles * k_splits warps; a warp takes a tile of 16 output channels and a k-split of its
// k-tiles.
struct RowwiseDecodeConfig {
  int depth;  // stages of 2 KB in a warp's ring
  int tiles, k_splits;
  int cluster;        // blocks that share K: 1, or 2, 4, 8 on Hopper
  int blocks;         // along n; each takes groups of tiles until none is left
  int shared_memory;  // bytes that a block may take: how much of x is in shared memory at a time
  int ahead;          // bytes of each output channel that are prefetched into L2 while the last kernel ends, on Hopper
  int overlaps;       // whether it may start while the last kernel ends (launch.h), on Hopper

  bool operator==(const RowwiseDecodeConfig&) const = default;
};

// What the model of its time (cuda/fits.h) says is fastest.
RowwiseDecodeConfig choose_rowwise_decode(const RowwiseLinear& p, const Device& device);

// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say. A
// config that is chosen for a product may not serve where x has to be quantised: all of x is in shared memory then.
bool rowwise_decode_fits(const RowwiseLinear& p, const RowwiseDecodeConfig& c);

// cudaErrorInvalidValue for a config that does not fit the problem or the device.
cudaError_t launch_rowwise_decode(const RowwiseLinear& p, const RowwiseDecodeConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string rowwise_decode_instances();
std::string rowwise_decode_instance(const RowwiseLinear& p, const RowwiseDecodeConfig& c);

}  // namespace aoext::cuda
