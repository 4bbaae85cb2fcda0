// How a product of Hopper's matrix engine is cut into tiles, rows of w by rows of x.
#pragma once

namespace aoext::cuda {

struct WgmmaConfig {
  int tokens;      // rows of x in a tile: 32, 64, 128 or 256, of narrow weights 96 or 192 too
  int cluster;     // blocks that share a tile of those that do not come out even (tile_scheduler.h): 1, 2 or, of 8-bit weights alone, 3
  int ranges;      // or, of weight-only products alone, the first so many blocks, that share all of these; or 0
  int blocks;      // in all, which run at once
  int rows = 128;  // of w in a tile: 192, 128 or 64; of two operands of 8 bits any multiple of 16 up to there
  int turned = 0;  // 1: rows of x are the left operand, of two operands of 8 bits alone; rows up to 192 then

  bool operator==(const WgmmaConfig&) const = default;
};

// Of each kernel that is cut so.
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
