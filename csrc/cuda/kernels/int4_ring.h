// Weight-only int4 for few rows of x: what int4_ring.cuh computes. Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

constexpr int64_t kRingCodesRows = 8;  // at most, of an x of 8 bits

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

template <class C, class... Own>
constexpr auto ring_fields(Own... own) {
  return std::to_array<Field<C>>({own...,
                                  {"warp_tiles", &C::warp_tiles},
                                  {"depth", &C::depth},
                                  {"tiles", &C::tiles},
                                  {"k_splits", &C::k_splits},
                                  {"cluster", &C::cluster},
                                  {"blocks", &C::blocks},
                                  {"shared_memory", &C::shared_memory},
                                  {"ahead", &C::ahead},
                                  {"overlaps", &C::overlaps}});
}

template <>
struct KernelOf<RingConfig> : KernelTraits<RingConfig, Int4Linear> {
  static constexpr const char* kName = "int4_ring";
  static constexpr auto kFields = ring_fields<RingConfig>();
  // M <= 16, K and group_size multiples of 32, K below 2^25, N below 2^29, x and weight at 16-byte alignment.
  static bool takes(const Int4Linear& p);
  static Choice<RingConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const RingConfig& c);
  static cudaError_t launch(const Int4Linear& p, const RingConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const RingConfig& c);
};

}  // namespace aoext::cuda
