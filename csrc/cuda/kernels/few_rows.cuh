// The skeleton of kernels for few rows of x: where a thread stands, what its warp copies next, the loop over a block's tiles, and
// the split-K reduction.
//
// A block has a warp for each tile, or pair of tiles, of 16 output channels and each k-split of the block's k-tiles; the blocks
// of a cluster share K as well. A block computes groups of tiles, one a turn. Where the x of its k-split does not fit into shared
// memory it goes through that in chunks.
//
// Params of such a kernel have M, m_magic, tile_groups, k_tiles, split_k_tiles, chunk_k_tiles, chunks, warp_stages,
// buffer_stride and cluster_log2 (few_rows.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda {

constexpr int kFewRowsThreads = 512;  // that a block may have, of 128 registers

// Where a thread stands, in a grid of (blocks of a cluster, clusters) and blocks of (32, k-splits, warps along N) threads.
struct Position {
  int lane, g, t;              // lane = 4 g + t, as mma's operands are dealt out
  int k_split, k_splits;       // of the block's warps
  int tile, tiles;             // the warp's first tile of 16 output channels, of all that the block has
  int warp, warps;             // of the block
  int rank, cluster;           // of the block
  int split_begin, split_end;  // k-tiles of the block's k-split

  template <class Params>
  __device__ __forceinline__ Position(const Params& p, int warp_tiles)
      : lane(threadIdx.x),
        g(lane >> 2),
        t(lane & 3),
        k_split(threadIdx.y),
        k_splits(blockDim.y),
        tile(threadIdx.z * warp_tiles),
        tiles(blockDim.z * warp_tiles),
        warp(threadIdx.z * k_splits + k_split),
        warps(blockDim.y * blockDim.z),
        rank(blockIdx.x),
        cluster(gridDim.x),
        split_begin(rank * p.split_k_tiles),
        split_end(min(split_begin + p.split_k_tiles, p.k_tiles)) {}
};

// The stage that a warp copies next, which runs a ring ahead of the one that it multiplies.
template <int kStageKTiles>
struct Cursor {
  int group, chunk, stage;  // of tiles; of the k-split; of the warp in the chunk
  int k_tile, end;          // the stage's first, and the chunk's end

  template <class Params>
  __device__ __forceinline__ void start(const Params& p, const Position& at) {
    group = blockIdx.y, chunk = 0, stage = 0;
    start_chunk(p, at);
  }

  template <class Params>
  __device__ __forceinline__ void start_chunk(const Params& p, const Position& at) {
    const int begin = at.split_begin + chunk * p.chunk_k_tiles;
    k_tile = begin + at.k_split * kStageKTiles;
    end = min(begin + p.chunk_k_tiles, at.split_end);
  }

  template <class Params>
  __device__ __forceinline__ bool is_inside(const Params& p) const {
    return group < p.tile_groups && k_tile < end;
  }

  // Calls aim() where another group of tiles begins.
  template <class Params, class Aim>
  __device__ __forceinline__ void advance(const Params& p, const Position& at, Aim&& aim) {
    k_tile += at.k_splits * kStageKTiles;
    if (++stage == p.warp_stages) {
      stage = 0;
      if (++chunk == p.chunks) {
        chunk = 0, group += gridDim.y;
        aim();
      }
      start_chunk(p, at);
    }
  }
};

// Brings the first p.ahead bytes of the block's k-split of `rows` output channels into L2; row_bytes and k_tile_bytes are of one
// of them.
template <class Params>
__device__ __forceinline__ void prefetch_rows(const Params& p, const Position& at, const void* weight, int64_t first_row,
                                              int rows, int64_t N, int row_bytes, int k_tile_bytes) {
  if (!p.ahead) return;
  const int64_t row = first_row + at.lane;
  const int from = at.split_begin * k_tile_bytes, bytes = min(min(at.split_end * k_tile_bytes, row_bytes) - from, p.ahead);
  if (at.k_split == 0 && at.lane < rows && row < N && bytes > 0)
    prefetch_bulk(static_cast<const uint8_t*>(weight) + row * row_bytes + from, bytes);
}

// Adds the partial sums of tiles of 16 output channels: first those of the k-splits of a block's warps, in shared memory; then
// those of the blocks of a cluster, in the shared memory of the block that owns the item. An item is 16 output channels by one
// row of x, for a half warp. A block sends the sums that others own at the end of a turn, and collects those that it owns a turn
// later, when the others' have long arrived. Two buffers are enough: before a block writes one again, it has waited for what the
// others sent after they had read it. Everything is added in a fixed order.
template <class Sum>
struct SplitKReduction {
  static_assert(sizeof(Sum) == 4);
  static constexpr int kTileN = 16;
  static constexpr int kStride = 20;  // from a row of x to the next: 16 sums, and 4 that keep stores free of bank conflicts

  struct alignas(8) Pair {
    Sum first, second;
  };

  Sum* partial;       // in shared memory, at 8-byte alignment: [tile][k-split][m][kStride], and what arrives from the cluster,
                      // [block][item][16]
  uint32_t barriers;  // in shared memory, of 8 bytes, one for each buffer
  int M;
  uint32_t m_magic;     // ceil(2^20 / M)
  int tiles, k_splits;  // of a block
  int buffer_stride;    // from the first buffer's partial sums to the second's, 0 where there is one turn
  int rank, cluster, cluster_log2;
  int warp, warps, lane;

  template <class Params>
  __device__ __forceinline__ SplitKReduction(const Params& p, const Position& at, Sum* partial, uint32_t barriers)
      : partial(partial),
        barriers(barriers),
        M(p.M),
        m_magic(p.m_magic),
        tiles(at.tiles),
        k_splits(at.k_splits),
        buffer_stride(p.buffer_stride),
        rank(at.rank),
        cluster(at.cluster),
        cluster_log2(p.cluster_log2),
        warp(at.warp),
        warps(at.warps),
        lane(at.lane) {}

  // How many sums a buffer has room for.
  static constexpr size_t sums(int tiles, int k_splits, int M, int cluster) {
    return size_t(tiles) * k_splits * M * kStride + (cluster > 1 ? size_t(cluster) * owned(tiles * M, cluster) * kTileN : 0);
  }
  static constexpr int owned(int items, int cluster) { return (items + cluster - 1) / cluster; }

  __device__ __forceinline__ int items() const { return tiles * M; }
  __device__ __forceinline__ int half() const { return warp * 2 + (lane >> 4); }
  __device__ __forceinline__ int owner() const { return half() & (cluster - 1); }
  __device__ __forceinline__ int owned() const { return (items() + cluster - 1) >> cluster_log2; }
  __device__ __forceinline__ Sum* sums_of(int turn) const { return partial + (turn & 1) * buffer_stride; }
  __device__ __forceinline__ Sum* slots_of(int turn) const {
    const int sums = tiles * k_splits * M * kStride;
    return partial + (buffer_stride ? 2 * sums + (turn & 1) * cluster * owned() * kTileN : sums);
  }

  __device__ __forceinline__ void start() const {
    if (cluster == 1) return;
    if (warp == 0 && lane == 0) barrier_init(barriers, 1), barrier_init(barriers + 8, 1);
    __syncwarp();
    cluster_arrive_initialised();
  }

  // Stores a warp's partial sums of a tile, in the order of mma's C, whose rows g and g + 8 are output channels 2g and 2g + 1.
  template <int Octets>
  __device__ __forceinline__ void put(int turn, int tile, int k_split, const Sum (&y)[Octets][4]) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int o = 0; o < Octets; ++o)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int m = o * 8 + 2 * t + c;
        Sum* to = sums_of(turn) + ((tile * k_splits + k_split) * M + m) * kStride + 2 * g;
        if (m < M) *reinterpret_cast<Pair*>(to) = {y[o][c], y[o][2 + c]};
      }
  }

  __device__ __forceinline__ Sum block_sum(int turn, int tile, int m) const {
    const Sum* from = sums_of(turn) + (tile * k_splits * M + m) * kStride + (lane & 15);
    Sum v = 0;
#pragma unroll 4
    for (int s = 0; s < k_splits; ++s) v += from[s * M * kStride];
    return v;
  }

  // store(turn, tile, m, sum) for all items of this block, each lane with the sum of output channel lane % 16 of the tile.
  template <class Store>
  __device__ __forceinline__ void collect(int turn, Store&& store) const {
    if (cluster > 1) barrier_wait_cluster(barriers + (turn & 1) * 8, turn >> 1 & 1);
#pragma unroll 1
    for (int item = half(); item < items() && owner() == rank; item += warps * 2) {
      const int tile = item * m_magic >> 20, m = item - tile * M;
      const Sum v = block_sum(turn, tile, m);
      Sum total = 0;
      const Sum* slots = slots_of(turn) + (item >> cluster_log2) * kTileN + (lane & 15);
#pragma unroll 1
      for (int c = 0; c < cluster; ++c) total += c == rank ? v : slots[c * owned() * kTileN];
      store(turn, tile, m, total);
    }
  }

  // After put, for every turn in order: stores this turn's items, or in a cluster those of the turn before.
  template <class Store>
  __device__ __forceinline__ void reduce(int turn, Store&& store) const {
    if (cluster > 1 && turn > 0) collect(turn - 1, store);
    __syncthreads();
    if (cluster == 1) {
      collect(turn, store);
      return;
    }
    if (turn == 0) cluster_wait();  // the others have started
    const uint32_t barrier = barriers + (turn & 1) * 8;
    if (warp == 0 && lane == 0)
      barrier_expect(barrier, (cluster - 1) * ((items() - rank + cluster - 1) >> cluster_log2) * kTileN * 4);
#pragma unroll 1
    for (int item = half(); item < items() && owner() != rank; item += warps * 2) {
      const int tile = item * m_magic >> 20, m = item - tile * M;
      Sum* to = slots_of(turn) + (rank * owned() + (item >> cluster_log2)) * kTileN + (lane & 15);
      const Sum v = block_sum(turn, tile, m);
      store_remote(remote_address(shared_address(to), owner()), remote_address(barrier, owner()),
                   reinterpret_cast<const float&>(v));
    }
    __syncwarp();
  }

  template <class Store>
  __device__ __forceinline__ void end(int turns, Store&& store) const {
    if (cluster > 1) collect(turns - 1, store);
  }
};

// The loop over a block's tiles, k-tile by k-tile, once the first stages are on their way. A kernel has
//
//   begin(group)                           // sums are zeros
//   stage_x(begin, end, first)             // k-tiles of x to shared memory, which nobody reads any more; the first of all
//   multiply(group, begin, end, k_tile)    // the warp's next stage, from k-tile begin + k_tile on, if that is before end
//   finish(turn)                           // puts the sums where the reduction reads them
//   store(turn, tile, m, sum)              // an output
template <int kStageKTiles, class Params, class Sum, class Kernel>
__device__ __forceinline__ void for_each_turn(const Params& p, const Position& at, const SplitKReduction<Sum>& reduction,
                                              Kernel& kernel) {
  const auto store = [&](int turn, int tile, int m, Sum sum) { kernel.store(turn, tile, m, sum); };
  int turn = 0;
  for (int group = blockIdx.y; group < p.tile_groups; group += gridDim.y, ++turn) {
    kernel.begin(group);
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const int begin = at.split_begin + chunk * p.chunk_k_tiles, end = min(begin + p.chunk_k_tiles, at.split_end);
      if (turn == 0 || p.chunks > 1) {
        const bool first = chunk + turn == 0;
        if (!first) __syncthreads();
        kernel.stage_x(begin, end, first);
        __syncthreads();
      }
#pragma unroll 1
      for (int k_tile = at.k_split * kStageKTiles, i = 0; i < p.warp_stages; ++i, k_tile += at.k_splits * kStageKTiles)
        kernel.multiply(group, begin, end, k_tile);
    }
    kernel.finish(turn);
    reduction.reduce(turn, store);
  }
  reduction.end(turn, store);
}

}  // namespace aoext::cuda
