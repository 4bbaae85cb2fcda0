// The int4 product of experts by wgmma: kernels/sm90a/weight_only_wgmma.cuh with int4_wgmma.cuh and GroupedScheduler.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

// How it is cut into tiles, which blocks take in turns (tile_scheduler.h).
struct GroupedWgmmaConfig {
  int block_n, block_m;  // output channels and rows of x of a tile
  int blocks;            // that run at once

  bool operator==(const GroupedWgmmaConfig&) const = default;
};

template <>
struct KernelOf<GroupedWgmmaConfig> : KernelTraits<GroupedWgmmaConfig, Int4Linear> {
  static constexpr const char* kName = "int4_grouped_wgmma";
  static constexpr auto kFields = std::to_array<Field<GroupedWgmmaConfig>>({{"block_n", &GroupedWgmmaConfig::block_n},
                                                                            {"block_m", &GroupedWgmmaConfig::block_m},
                                                                            {"blocks", &GroupedWgmmaConfig::blocks}});
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
  static bool takes(const Int4Linear& p);
  static Choice<GroupedWgmmaConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const GroupedWgmmaConfig& c);
  static cudaError_t launch(const Int4Linear& p, const GroupedWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const GroupedWgmmaConfig& c);
};

}  // namespace aoext::cuda
