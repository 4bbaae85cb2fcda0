// How a product by wgmma is cut into tiles, output channels by rows of x.
#pragma once

#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

struct WgmmaConfig {
  int block_m;  // rows of x of a tile (BLOCK_M): 32, 64, 128 or 256, of weight-only products 96 or 192 too
  int cluster;  // blocks that share a tile of those that do not come out even (tile_scheduler.h): 1, 2 or, of 8-bit weights
                // alone, 3
  int stream_k_blocks;  // or, of weight-only products, the blocks with a range of stream-K; or 0
  int blocks;           // in all, which run at once
  int block_n = 128;    // output channels of a tile (BLOCK_N): 192, 128 or 64; of two 8-bit operands any multiple of 16 up to 192
  int x_is_left = 0;    // 1: without swap_ab, x is the left operand; of two 8-bit operands only

  bool operator==(const WgmmaConfig&) const = default;
};

template <class Config>
constexpr auto kWgmmaFields = std::to_array<Field<Config>>({{"block_m", &Config::block_m},
                                                            {"cluster", &Config::cluster},
                                                            {"stream_k_blocks", &Config::stream_k_blocks},
                                                            {"blocks", &Config::blocks},
                                                            {"block_n", &Config::block_n},
                                                            {"x_is_left", &Config::x_is_left}});

// One for each kernel that is cut so.
struct Int4WgmmaConfig : WgmmaConfig {
  bool operator==(const Int4WgmmaConfig&) const = default;
};
struct WeightOnlyWgmmaConfig : WgmmaConfig {
  bool operator==(const WeightOnlyWgmmaConfig&) const = default;
};
struct RowwiseWgmmaConfig : WgmmaConfig {
  bool operator==(const RowwiseWgmmaConfig&) const = default;
};
struct ScaledWgmmaConfig : WgmmaConfig {
  bool operator==(const ScaledWgmmaConfig&) const = default;
};

}  // namespace aoext::cuda
