// How a product of Hopper's matrix engine is cut: tiles of 128 rows of w.
#pragma once

namespace aoext::cuda {

struct WgmmaConfig {
  int tokens;   // rows of x in a tile: 32, 64, 128 or 256, of narrow weights 96 or 192 too
  int cluster;  // blocks that share a tile of those that do not come out even (segments.h): 1, 2 or, of 8-bit weights alone, 3
  int ranges;   // or all blocks that share all of these, or 0
  int blocks;   // in all, which run at once
};

}  // namespace aoext::cuda
