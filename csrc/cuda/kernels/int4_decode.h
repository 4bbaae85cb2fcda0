// Weight-only int4 for few rows of x: what int4_decode.cuh computes. Deterministic; needs no workspace; may be captured in a
// graph.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

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

template <>
struct KernelOf<DecodeConfig> : KernelTraits<DecodeConfig, Int4Linear> {
  static constexpr const char* kName = "int4_decode";
  static constexpr auto kFields = std::to_array<Field<DecodeConfig>>({{"block_m", &DecodeConfig::block_m},
                                                                      {"warp_tiles", &DecodeConfig::warp_tiles},
                                                                      {"stage_k_tiles", &DecodeConfig::stage_k_tiles},
                                                                      {"tiles", &DecodeConfig::tiles},
                                                                      {"k_splits", &DecodeConfig::k_splits},
                                                                      {"cluster", &DecodeConfig::cluster},
                                                                      {"blocks", &DecodeConfig::blocks},
                                                                      {"shared_memory", &DecodeConfig::shared_memory},
                                                                      {"overlaps", &DecodeConfig::overlaps}});
  // M <= 16, N even, group_size a multiple of 64 (of 128 with float32 scales), x and weight at 16-byte alignment, scales at 4,
  // sizes as few_rows_counts says.
  static bool takes(const Int4Linear& p);
  static Choice<DecodeConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const DecodeConfig& c);
  static cudaError_t launch(const Int4Linear& p, const DecodeConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const DecodeConfig& c);
};

}  // namespace aoext::cuda
