// In which order a block of tinygemm_mm.cuh does its work, and a warp loads its weights.
#pragma once

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tinygemm.h"
#include "cuda/kernels/tinygemm_layout.cuh"

namespace aoext::cuda::tinygemm {

constexpr int kRows = 16;  // of a row tile

struct Shape {
  TinygemmLinear p;
  int log2_group;    // of k
  int chunks;        // of K
  int phase_chunks;  // whose inputs fit
  int tiles;         // of 16 rows
  int k_tiles;       // of a warp in a turn of a phase
  int last_k_tiles;  // of the last phase, which may be shorter
};

// So many row tiles a warp may be ahead of another.
__host__ __device__ constexpr int buffers(int block_m) { return block_m == 8 ? 3 : 2; }

// Where a warp is in its sequence of turns: phases, in them the block's row tiles. A warp has `k_tiles` k-tiles in
// each turn. No divisions here, for a turn may be as short as one k-tile.
struct Turn {
  int begin, count, k_tiles;  // of the phase: its chunks, and how many of them each warp has at most
  int tile, index;            // the row tile, and which of the block's it is
  int first_row;              // of the slot rows that this warp adds
  int buffer, parity;         // where partial sums are added, and how often that buffer was used before, modulo 2

  __device__ __forceinline__ Turn(const Shape& s, int warp) : begin(0), buffer(0), parity(0) { start_phase(s, warp); }
  __device__ __forceinline__ void start_phase(const Shape& s, int warp) {
    count = min(s.phase_chunks, s.chunks - begin);
    k_tiles = begin + s.phase_chunks < s.chunks ? s.k_tiles : s.last_k_tiles;
    tile = blockIdx.x;
    index = 0;
    first_row = warp;
  }
  __device__ __forceinline__ bool done(const Shape& s) const { return begin >= s.chunks; }
  template <int MT>
  __device__ __forceinline__ void advance(const Shape& s, int warp, int warps) {
    if (++buffer == buffers(8 * MT)) buffer = 0, parity ^= 1;
    ++index;
    first_row += 4 * MT;  // the warps take turns
    while (first_row >= warps) first_row -= warps;
    tile += gridDim.x;
    if (tile < s.tiles) return;
    begin += s.phase_chunks;
    start_phase(s, warp);
  }
};

// What a lane holds of a k-tile in flight: words of both n-tiles, and scale and zero of its row in each.
struct KTile {
  uint32_t low[4], high[4];
  uint32_t low_sz, high_sz;
};

// A warp's loads, in the order of its k-tiles.
template <int Inner>
struct Loads {
  int warp, warps, lane;
  int begin, count, k_tiles, tile;  // as in Turn
  int left;                         // k-tiles of this turn still to load
  int k, end;                       // of the next k-tile, and of the phase
  const uint32_t* weight;           // of the next k-tile, in the low n-tile
  const uint32_t* sz;               // of the lane's low row, in the first group
  int64_t high;                     // words from the low n-tile to the high one; an odd last one is its own neighbour
  int high_sz;

  __device__ __forceinline__ Loads(const Shape& s, int warp, int warps, int lane)
      : warp(warp), warps(warps), lane(lane), begin(0) {
    start_phase(s);
    start_turn(s);
  }

  __device__ __forceinline__ void start_phase(const Shape& s) {
    count = min(s.phase_chunks, s.chunks - begin);
    k_tiles = begin + s.phase_chunks < s.chunks ? s.k_tiles : s.last_k_tiles;
    tile = blockIdx.x;
  }

  __device__ __forceinline__ void start_turn(const Shape& s) {
    const int64_t low = 2 * static_cast<int64_t>(tile);
    const bool odd = low + 1 == s.p.N / 8;
    left = k_tiles;
    k = (begin + warp) * kTinygemmChunk;
    end = (begin + count) * kTinygemmChunk;  // after the last phase nothing is below it
    weight = static_cast<const uint32_t*>(s.p.weight) + low * s.p.K + static_cast<int64_t>(begin + warp) * kTinygemmChunkWords;
    sz = static_cast<const uint32_t*>(s.p.scale_and_zero) + low * 8 + lane / 4;
    high = odd ? 0 : s.p.K;
    high_sz = odd ? 0 : 8;
  }

  // Asks for the first k-tile, while the last kernel ends.
  __device__ __forceinline__ void ask(const Shape& s) const {
    constexpr int kLine = 32, kLines = kTinygemmChunkWords / kLine;  // words
    if (k + kTinygemmChunk <= s.p.K && lane < 2 * kLines) prefetch_line(weight + lane / kLines * high + lane % kLines * kLine);
  }

  __device__ __forceinline__ void next(KTile& k_tile, const Shape& s) {
    const int K = static_cast<int>(s.p.K);
    const bool here = k < end;
    const int words = here ? (Inner == 8 ? 4 : min(4, (K - k) / 32)) : 0;
    load_chunk<Inner>(k_tile.low, weight, lane, words);
    load_chunk<Inner>(k_tile.high, weight + high, lane, words);
    // Lane t of a quad has the scale of k = 32 t and on; past K any finite number of the row does.
    const int lane_k = Inner == 8 ? k + 32 * (lane % 4) : min(k + 32 * (lane % 4), K - 32);
    const uint32_t group = static_cast<uint32_t>(lane_k) >> s.log2_group;
    const uint32_t* pair = sz + static_cast<uint64_t>(group) * static_cast<uint32_t>(s.p.N);
    load_word(k_tile.low_sz, pair, here);
    load_word(k_tile.high_sz, pair + high_sz, here);
    k += warps * kTinygemmChunk;
    weight += warps * kTinygemmChunkWords;
    if (--left > 0) return;
    tile += gridDim.x;
    if (tile >= s.tiles) {
      begin += s.phase_chunks;
      start_phase(s);
    }
    start_turn(s);
  }
};

}  // namespace aoext::cuda::tinygemm
