// How blocks share a product's tiles: whole ones in turns, and the rest of them, fewer than there are blocks, along K. Either a
// cluster takes one, whose blocks have equal parts, or the first blocks have equal ranges of all, which leave their sums in a
// workspace before they do anything else. Owners, the blocks behind them, bring these together at their end: beside whole tiles,
// of which an owner has done its own long before others have, any number of tiles; where there are no whole tiles one each, of
// which it has the last stages itself.
// Who waits, waits for blocks before it, which began before it. Sums always run in the same order: the same call gives the same
// bits.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

struct Segments {
  int tiles, stages;        // stages of K, that a tile has
  int whole_tiles;          // that a block takes alone
  int cluster;              // blocks that share one of the rest, or 1
  int ranges;               // blocks, the first, that share all of the rest, or 0
  int owners;               // and behind them blocks that own tiles of the rest in turns
  int shared_stages;        // of a tile of the rest, its first, that ranges share: all, or those that its owner does not have
  int part_stages, longer;  // of a range or a part of a cluster, and how many of them, the first, have one more
  float4* partials;         // [ranges + rest] what a range left of a tile
  unsigned* counters;       // [rest] how many have left something, zero at first
};

inline int rest_tiles(const Segments& s) { return s.tiles - s.whole_tiles; }

// Where a part begins: in stages of a tile, or in those of all tiles that ranges share.
__host__ __device__ inline int part_begin(const Segments& s, int part) {
  return part * s.part_stages + (part < s.longer ? part : s.longer);
}

// The part that has a stage.
__host__ __device__ inline int part_of(const Segments& s, int stage) {
  const int in_longer = s.longer * (s.part_stages + 1);
  return stage < in_longer ? unsigned(stage) / unsigned(s.part_stages + 1)
                           : s.longer + unsigned(stage - in_longer) / unsigned(s.part_stages);
}

inline Segments share_tiles(int64_t tiles, int64_t stages, int blocks, int cluster, int ranges) {
  Segments s{};
  s.tiles = static_cast<int>(tiles), s.stages = static_cast<int>(stages);
  s.whole_tiles = cluster == 1 && ranges == 0 ? s.tiles : s.tiles / blocks * blocks;
  s.cluster = cluster, s.ranges = ranges, s.owners = ranges > 0 ? blocks - ranges : 0;
  const int64_t rest = rest_tiles(s);
  s.shared_stages = s.whole_tiles > 0 || ranges == 0 ? s.stages : static_cast<int>(stages * ranges / (ranges + rest));
  const int64_t shared = ranges > 0 ? rest * s.shared_stages : s.stages, parts = std::max(ranges, cluster);
  s.part_stages = static_cast<int>(shared / parts), s.longer = static_cast<int>(shared % parts);
  return s;
}

// Whether everyone who shares a tile has something of it, and who has stages of a tile that he owns owns no other.
inline bool shares_fit(const Segments& s, int blocks) {
  const int rest = rest_tiles(s);
  if (s.cluster > 1) return s.ranges == 0 && blocks % s.cluster == 0 && rest <= blocks / s.cluster && s.stages >= s.cluster;
  return s.ranges == 0 || (s.ranges <= int64_t{rest} * s.shared_stages && (s.whole_tiles > 0 ? s.owners > 0 : s.owners == rest));
}

// As many blocks as have even work, of so many that run at once.
inline int64_t even_blocks(int64_t tiles, int cluster, int64_t at_once) {
  at_once = std::max<int64_t>(at_once / cluster, 1) * cluster;
  const int64_t left = tiles - at_once / cluster, turns = left > 0 ? ceil_div(left, at_once) : 0;  // of whole tiles
  return ceil_div(ceil_div(tiles * cluster, turns * cluster + 1), cluster) * cluster;
}

// The memory they take, `tile_bytes` being that of a tile's sums: first partials, then counters.
inline size_t partial_bytes(const Segments& s, size_t tile_bytes) {
  return s.ranges == 0 ? 0 : tile_bytes * (s.ranges + rest_tiles(s));
}
inline size_t counter_bytes(const Segments& s) { return s.ranges == 0 ? 0 : rest_tiles(s) * sizeof(unsigned); }

inline void place(Segments& s, void* workspace, size_t tile_bytes) {
  s.partials = static_cast<float4*>(workspace);
  s.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partial_bytes(s, tile_bytes));
}

}  // namespace aoext::cuda
