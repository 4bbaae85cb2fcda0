// How blocks share a product's tiles: whole ones in turns, and the rest of them, fewer than there are blocks, along K. Either a
// cluster takes one, whose blocks have equal parts, or all blocks have equal parts of all: then whoever
// comes last to a tile, its first block as a rule, adds up what the others left in a workspace. Sums always run in the order of
// K: the same call gives the same bits.
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
  int ranges;               // blocks that share all of the rest, or 0
  int part_stages, longer;  // of the part of a block of either, and how many of them, the first, have one more
  float4* partials;         // of a range what it left of two tiles at most
  unsigned* counters;       // [rest] how many have left something, zero at first
};

inline Segments share_tiles(int64_t tiles, int64_t stages, int blocks, int cluster, int ranges) {
  Segments s{};
  s.tiles = static_cast<int>(tiles), s.stages = static_cast<int>(stages);
  s.whole_tiles = cluster == 1 && ranges == 0 ? s.tiles : s.tiles / blocks * blocks;
  s.cluster = cluster, s.ranges = ranges;
  const int64_t shared = ranges > 0 ? int64_t{s.tiles - s.whole_tiles} * s.stages : s.stages, parts = std::max(ranges, cluster);
  s.part_stages = static_cast<int>(shared / parts), s.longer = static_cast<int>(shared % parts);
  return s;
}

inline int rest_tiles(const Segments& s) { return s.tiles - s.whole_tiles; }

// Whether everyone who shares a tile has something of it, and nobody more than he may have.
inline bool shares_fit(const Segments& s, int blocks) {
  if (s.cluster > 1)
    return s.ranges == 0 && blocks % s.cluster == 0 && rest_tiles(s) <= blocks / s.cluster && s.stages >= s.cluster;
  const int64_t stages = int64_t{rest_tiles(s)} * s.stages;
  return s.ranges == 0 || (s.ranges > rest_tiles(s) && s.ranges <= blocks && s.ranges <= stages);
}

// As many blocks as have even work, of so many that run at once.
inline int64_t even_blocks(int64_t tiles, int cluster, int64_t at_once) {
  at_once = std::max<int64_t>(at_once / cluster, 1) * cluster;
  const int64_t left = tiles - at_once / cluster, turns = left > 0 ? ceil_div(left, at_once) : 0;  // of whole tiles
  return ceil_div(ceil_div(tiles * cluster, turns * cluster + 1), cluster) * cluster;
}

// The memory they take, `tile_bytes` being that of a tile's sums: first partials, then counters.
inline size_t partial_bytes(const Segments& s, size_t tile_bytes) { return 2 * tile_bytes * s.ranges; }
inline size_t counter_bytes(const Segments& s) { return s.ranges == 0 ? 0 : rest_tiles(s) * sizeof(unsigned); }

inline void place(Segments& s, void* workspace, size_t tile_bytes) {
  s.partials = static_cast<float4*>(workspace);
  s.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partial_bytes(s, tile_bytes));
}

}  // namespace aoext::cuda
