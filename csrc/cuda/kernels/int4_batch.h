// int4 products for a batch of rows of x by wgmma: kernels/sm90a/int4_batch.cuh.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

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

template <>
struct KernelOf<BatchConfig> : KernelTraits<BatchConfig, Int4Linear> {
  static constexpr const char* kName = "int4_batch";
  static constexpr auto kFields = std::to_array<Field<BatchConfig>>({{"block_m", &BatchConfig::block_m},
                                                                     {"k_splits", &BatchConfig::k_splits},
                                                                     {"cluster", &BatchConfig::cluster},
                                                                     {"blocks", &BatchConfig::blocks},
                                                                     {"shared_memory", &BatchConfig::shared_memory}});
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
  static bool takes(const Int4Linear& p);
  static Choice<BatchConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const BatchConfig& c);
  static size_t workspace(const Int4Linear& p, const BatchConfig& c);
  static cudaError_t launch(const Int4Linear& p, const BatchConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const BatchConfig& c);
};

}  // namespace aoext::cuda
