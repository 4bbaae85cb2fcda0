// Which block computes which tiles of y, and which k-tiles of them: the scheduler of the persistent kernels of sm_90a. The
// device's side is sm90a/tile_scheduler.cuh.
//
// Whole tiles go to the blocks in turns: block b takes tiles b, b + blocks, b + 2 blocks, … The tiles that do not fill a last
// turn are shared along K, in one of two ways, so that no block idles through it:
//
//   Clusters (`cluster` > 1). The blocks of a cluster take one k-split each of the same tile, and reduce over distributed shared
//   memory (reduce_cluster in sm90a/tiles.cuh).
//
//   Stream-K with fix-up blocks (`stream_k_blocks` > 0). Lay the k-tiles of all shared tiles end to end and cut them into ranges
//   of equal length, one for each of the first blocks. A range may begin and end within a tile. A fix-up block, of those behind
//   them, adds what the ranges left of its tile, and stores it.
//
//   Without whole tiles: as many fix-up blocks as tiles. Each takes its tile's last k-tiles itself, so that it multiplies while
//   the ranges do. 2 tiles of 8 k-tiles on 5 blocks, 3 of them for ranges; of each tile 4 k-tiles are shared, 8 in all:
//
//                  tile 0                            tile 1
//     k-tile       0   1   2   3 │ 4   5   6   7     0   1   2   3 │ 4   5   6   7
//     range of     0   0   0   1 │                   1   1   2   2 │
//     fix-up by                  │ 3   3   3   3                   │ 4   4   4   4
//
//     block 0   multiplies tile 0 [0, 3), stores partial sums (0, 0), counts 1 for tile 0
//     block 1   multiplies tile 0 [3, 4), stores (1, 0), counts 1; then tile 1 [0, 2), stores (1, 1), counts 1
//     block 2   multiplies tile 1 [2, 4), stores (2, 1), counts 1
//     block 3   multiplies tile 0 [4, 8), waits until tile 0's counter is 2, adds (0, 0) and (1, 0), writes y
//     block 4   multiplies tile 1 [4, 8), waits until tile 1's counter is 2, adds (1, 1) and (2, 1), writes y
//
//   Beside whole tiles: the ranges are all of the shared tiles' K, and come before the whole tiles of their blocks. The fix-up
//   blocks begin with whole tiles, of which they have done their own long before the last block has, and take the shared tiles
//   in turns at their end, so any number of them may do.
//
// Partial sums of range r and shared tile t lie at r + t: from one pair to the next that meet, one of the two grows, so that the
// places are distinct and there are ranges + tiles of them at most.
//
// A block waits only for lower-numbered blocks, which were scheduled earlier and wait for nobody before they have stored their
// partial sums, or for those of its cluster, which run at the same time: so there is no deadlock. Sums are added in one order,
// that of K: the same call gives the same bits.
//
// Experts. A grouped product (y_e = x_e · w_eᵀ, the rows of x sorted by expert) has tiles of its experts, one after the other:
//
//     expert                  0            1   2 (no rows)   3           behind the last
//     rows of x              70          140       0        150          6, whose y is zero
//     tiles of rows           1            2       0         2           1                   of 128
//     first_tile              0            1       3         3           5              6    prefix sums
//
//   Each tile of rows is as many tiles as there are along N. How many rows an expert has comes from the router and stands in
//   device memory, and the host never waits for it: it chooses the tile and the number of blocks by what it knows, the rows of
//   all. So a block finds the prefix sums itself, by one warp, while it starts (GroupedWork): it reads as many numbers as there
//   are experts, which takes less than another launch would. A tile's expert is found in them by a binary search. All tiles are
//   whole, in turns: many experts make many tiles. (To share a last turn along K a block would derive whole_tiles and the ranges
//   from the number of tiles as schedule_tiles does, and the workspace would be for the largest number.)
//   Weights are copied with the expert as the third coordinate of a tensor map, so that what lies outside one's weight is zero;
//   rows of x are those of all, cut off at the expert's end by the epilogue.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

struct TileScheduler {
  int tiles, k_tiles;   // k_tiles: of each tile
  int whole_tiles;      // that one block computes alone; the others are shared
  int cluster;          // blocks that share one of them, or 1
  int stream_k_blocks;  // or the first blocks, which have a range of their k-tiles each; or 0
  int fix_up_blocks;    // and those behind them, which bring the shared tiles together in turns
  int shared_k_tiles;   // of a shared tile, its first, which ranges have: all, or those that fix-up blocks do not take
  int split_k_tiles, longer_splits;  // of a range or of a cluster's k-split; so many of them, the first, have one more
  float4* partials;                  // [stream_k_blocks + shared tiles] partial sums of a tile
  unsigned* counters;                // [shared tiles] how many ranges have stored partial sums, zero at first
};

// The experts that a block has room for in shared memory.
constexpr int kMostExperts = 768;

// The same for a grouped product.
struct GroupedScheduler {
  static constexpr int cluster = 1, stream_k_blocks = 0;  // all tiles are whole
  const int32_t* ends;                                    // [experts] the row of x behind each one's last
  int experts, rows;                                      // rows of x of all, and behind the last
  int along_n, k_tiles;
};

inline int shared_tiles(const TileScheduler& s) { return s.tiles - s.whole_tiles; }

// Where a split begins: in k-tiles of a tile or, of ranges, of all shared tiles end to end.
__host__ __device__ inline int split_begin(const TileScheduler& s, int split) {
  return split * s.split_k_tiles + (split < s.longer_splits ? split : s.longer_splits);
}

// The split that has a k-tile.
__host__ __device__ inline int split_of(const TileScheduler& s, int k_tile) {
  const int in_longer = s.longer_splits * (s.split_k_tiles + 1);
  return k_tile < in_longer ? unsigned(k_tile) / unsigned(s.split_k_tiles + 1)
                            : s.longer_splits + unsigned(k_tile - in_longer) / unsigned(s.split_k_tiles);
}

inline TileScheduler schedule_tiles(int64_t tiles, int64_t k_tiles, int blocks, int cluster, int stream_k_blocks) {
  TileScheduler s{};
  s.tiles = static_cast<int>(tiles), s.k_tiles = static_cast<int>(k_tiles);
  s.whole_tiles = cluster == 1 && stream_k_blocks == 0 ? s.tiles : s.tiles / blocks * blocks;
  s.cluster = cluster, s.stream_k_blocks = stream_k_blocks;
  s.fix_up_blocks = stream_k_blocks > 0 ? blocks - stream_k_blocks : 0;
  const int64_t shared = shared_tiles(s);
  const bool fix_up_multiplies = s.whole_tiles == 0 && stream_k_blocks > 0;
  s.shared_k_tiles = fix_up_multiplies ? static_cast<int>(k_tiles * stream_k_blocks / (stream_k_blocks + shared)) : s.k_tiles;
  const int64_t to_split = stream_k_blocks > 0 ? shared * s.shared_k_tiles : s.k_tiles;
  const int64_t splits = std::max(stream_k_blocks, cluster);
  s.split_k_tiles = static_cast<int>(to_split / splits), s.longer_splits = static_cast<int>(to_split % splits);
  return s;
}

// Whether every block that shares a tile has some of its k-tiles, and a fix-up block that multiplies has one tile.
inline bool schedule_fits(const TileScheduler& s, int blocks) {
  const int shared = shared_tiles(s);
  if (s.cluster > 1)
    return s.stream_k_blocks == 0 && blocks % s.cluster == 0 && shared <= blocks / s.cluster && s.k_tiles >= s.cluster;
  return s.stream_k_blocks == 0 || (s.stream_k_blocks <= int64_t{shared} * s.shared_k_tiles &&
                                    (s.whole_tiles > 0 ? s.fix_up_blocks > 0 : s.fix_up_blocks == shared));
}

// As many blocks as have even work, of so many that run at once.
inline int64_t even_blocks(int64_t tiles, int cluster, int64_t at_once) {
  at_once = std::max<int64_t>(at_once / cluster, 1) * cluster;
  const int64_t left = tiles - at_once / cluster, turns = left > 0 ? ceil_div(left, at_once) : 0;  // of whole tiles
  return ceil_div(ceil_div(tiles * cluster, turns * cluster + 1), cluster) * cluster;
}

// The workspace, `tile_bytes` being that of a tile's sums: partial sums, then counters.
inline size_t partial_bytes(const TileScheduler& s, size_t tile_bytes) {
  return s.stream_k_blocks == 0 ? 0 : tile_bytes * (s.stream_k_blocks + shared_tiles(s));
}
inline size_t counter_bytes(const TileScheduler& s) { return s.stream_k_blocks == 0 ? 0 : shared_tiles(s) * sizeof(unsigned); }

inline void set_workspace(TileScheduler& s, void* workspace, size_t tile_bytes) {
  s.partials = static_cast<float4*>(workspace);
  s.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partial_bytes(s, tile_bytes));
}

}  // namespace aoext::cuda
