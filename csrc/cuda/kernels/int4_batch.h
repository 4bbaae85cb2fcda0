// int4 products for a batch of rows of x by wgmma: kernels/sm90a/int4_batch.cuh.
#pragma once

#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/int4.h"
#include "cuda/properties.h"

namespace aoext::cuda {

constexpr int kBatchRows = 256;  // output channels of a block, times its k-splits

struct BatchConfig {
  int block_m;        // rows of x at most: 16, 32 or 64
  int k_splits;       // k-splits of a block: 1, 2 or 4 of its four warpgroups; 4 / k_splits are row groups of 64
  int cluster;        // blocks that share the tiles that do not come out even (tile_scheduler.h): 1 or 2
  int blocks;         // in all, which run at once
  int shared_memory;  // bytes that a block may have

  bool operator==(const BatchConfig&) const = default;
};

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
bool int4_batch_takes(const Int4Linear& p);
Choice<BatchConfig> choose_int4_batch(const Int4Linear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool int4_batch_fits(const Int4Linear& p, const BatchConfig& config);
size_t int4_batch_workspace(const Int4Linear& p, const BatchConfig& config);  // bytes
cudaError_t launch_int4_batch(const Int4Linear& p, const BatchConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string int4_batch_instances();
std::string int4_batch_instance(const Int4Linear& p, const BatchConfig& c);

}  // namespace aoext::cuda
