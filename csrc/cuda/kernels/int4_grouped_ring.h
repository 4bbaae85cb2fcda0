// Weight-only int4 of experts for few rows of each: int4_ring.cuh, with blocks for each tile of rows. Deterministic; needs no
// workspace; may be captured in a graph.
#pragma once

#include "cuda/kernels/int4_ring.h"

namespace aoext::cuda {

// For a tile of rows; `blocks` along n are each tile's.
struct GroupedRingConfig : RingConfig {
  int block_m;  // rows of a tile at most: 1 or 8

  bool operator==(const GroupedRingConfig&) const = default;
};

template <>
struct KernelOf<GroupedRingConfig> : KernelTraits<GroupedRingConfig, Int4Linear> {
  static constexpr const char* kName = "int4_grouped_ring";
  static constexpr auto kFields =
      ring_fields<GroupedRingConfig>(Field<GroupedRingConfig>{"block_m", &GroupedRingConfig::block_m});
  // K and group_size multiples of 32, x and weight at 16-byte alignment, and so few rows that a grid holds them.
  static bool takes(const Int4Linear& p);
  static Choice<GroupedRingConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const GroupedRingConfig& c);
  static cudaError_t launch(const Int4Linear& p, const GroupedRingConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const GroupedRingConfig& c);
};

}  // namespace aoext::cuda
