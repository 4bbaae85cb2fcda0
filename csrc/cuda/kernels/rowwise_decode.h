// Products with 8-bit weights for few rows of x: what rowwise_decode.cuh computes. Deterministic; needs no workspace; may be
// captured in a graph.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

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

template <class Config>
constexpr auto kDecodeFields = std::to_array<Field<Config>>({{"depth", &Config::depth},
                                                             {"tiles", &Config::tiles},
                                                             {"k_splits", &Config::k_splits},
                                                             {"cluster", &Config::cluster},
                                                             {"blocks", &Config::blocks},
                                                             {"shared_memory", &Config::shared_memory},
                                                             {"ahead", &Config::ahead},
                                                             {"overlaps", &Config::overlaps}});

template <>
struct KernelOf<RowwiseDecodeConfig> : KernelTraits<RowwiseDecodeConfig, RowwiseLinear> {
  static constexpr const char* kName = "rowwise_decode";
  static constexpr auto kFields = kDecodeFields<RowwiseDecodeConfig>;
  // M <= 16, K % 16 == 0, K <= 2^27, N <= 2^30, x and weight at 16-byte alignment; x of the weight's type, bf16 or fp16, or one
  // to be quantised, of M <= 8.
  static bool takes(const RowwiseLinear& p);
  static Choice<RowwiseDecodeConfig> choose(const RowwiseLinear& p, const Device& device);
  // A configuration that is chosen for a product may not serve where x has to be quantised: all of x is in shared memory then.
  static bool fits(const RowwiseLinear& p, const RowwiseDecodeConfig& c);
  static cudaError_t launch(const RowwiseLinear& p, const RowwiseDecodeConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const RowwiseLinear& p, const RowwiseDecodeConfig& c);
};

}  // namespace aoext::cuda
