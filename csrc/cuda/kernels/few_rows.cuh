// What kernels for few rows of x share: the split-K reduction.
#pragma once

#include <cstdint>

#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda {

// Adds the partial sums of tiles of 16 output channels: first those of the k-splits of a block's warps (`slices`), in shared
// memory; then those of the blocks of a cluster, in the shared memory of the block that owns the item. An item is 16 output
// channels by one row of x, for a half warp. A block sends the sums that others own at the end of a turn, and collects those that
// it owns a turn later, when the others' have long arrived. Two buffers are enough: before a block writes one again, it has
// waited for what the others sent after they had read it. Everything is added in a fixed order.
template <class Sum>
struct SplitKReduction {
  static_assert(sizeof(Sum) == 4);
  static constexpr int kTileN = 16;
  static constexpr int kStride = 20;  // from a row of x to the next: 16 sums, and 4 that keep stores free of bank conflicts

  struct alignas(8) Pair {
    Sum first, second;
  };

  Sum* partial;       // in shared memory, at 8-byte alignment: [tile][slice][m][kStride], and what arrives from the cluster,
                      // [block][item][16]
  uint32_t barriers;  // in shared memory, of 8 bytes, one for each buffer
  int M;
  uint32_t m_magic;   // ceil(2^20 / M)
  int tiles, slices;  // of a block
  int buffer_stride;  // from the first buffer's partial sums to the second's, 0 where there is one turn
  int rank, cluster, cluster_log2;
  int warp, warps, lane;

  // How many sums a buffer has room for.
  static constexpr size_t sums(int tiles, int slices, int M, int cluster) {
    return size_t(tiles) * slices * M * kStride + (cluster > 1 ? size_t(cluster) * owned(tiles * M, cluster) * kTileN : 0);
  }
  static constexpr int owned(int items, int cluster) { return (items + cluster - 1) / cluster; }

  __device__ __forceinline__ int items() const { return tiles * M; }
  __device__ __forceinline__ int half() const { return warp * 2 + (lane >> 4); }
  __device__ __forceinline__ int owner() const { return half() & (cluster - 1); }
  __device__ __forceinline__ int owned() const { return (items() + cluster - 1) >> cluster_log2; }
  __device__ __forceinline__ Sum* sums_of(int turn) const { return partial + (turn & 1) * buffer_stride; }
  __device__ __forceinline__ Sum* slots_of(int turn) const {
    const int sums = tiles * slices * M * kStride;
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
  __device__ __forceinline__ void put(int turn, int tile, int slice, const Sum (&y)[Octets][4]) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int o = 0; o < Octets; ++o)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int m = o * 8 + 2 * t + c;
        Sum* to = sums_of(turn) + ((tile * slices + slice) * M + m) * kStride + 2 * g;
        if (m < M) *reinterpret_cast<Pair*>(to) = {y[o][c], y[o][2 + c]};
      }
  }

  __device__ __forceinline__ Sum slices_sum(int turn, int tile, int m) const {
    const Sum* from = sums_of(turn) + (tile * slices * M + m) * kStride + (lane & 15);
    Sum v = 0;
#pragma unroll 4
    for (int s = 0; s < slices; ++s) v += from[s * M * kStride];
    return v;
  }

  // body(turn, tile, m, sum) for all items of this block, each lane with the sum of output channel lane % 16 of the tile.
  template <class Body>
  __device__ __forceinline__ void collect(int turn, Body&& body) const {
    if (cluster > 1) barrier_wait_cluster(barriers + (turn & 1) * 8, turn >> 1 & 1);
#pragma unroll 1
    for (int item = half(); item < items() && owner() == rank; item += warps * 2) {
      const int tile = item * m_magic >> 20, m = item - tile * M;
      const Sum v = slices_sum(turn, tile, m);
      Sum total = 0;
      const Sum* slots = slots_of(turn) + (item >> cluster_log2) * kTileN + (lane & 15);
#pragma unroll 1
      for (int c = 0; c < cluster; ++c) total += c == rank ? v : slots[c * owned() * kTileN];
      body(turn, tile, m, total);
    }
  }

  // After put, for every turn in order: calls `body` for this turn's items, or in a cluster for those of the turn before.
  template <class Body>
  __device__ __forceinline__ void reduce(int turn, Body&& body) const {
    if (cluster > 1 && turn > 0) collect(turn - 1, body);
    __syncthreads();
    if (cluster == 1) {
      collect(turn, body);
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
      const Sum v = slices_sum(turn, tile, m);
      store_remote(remote_address(shared_address(to), owner()), remote_address(barrier, owner()),
                   reinterpret_cast<const float&>(v));
    }
    __syncwarp();
  }

  template <class Body>
  __device__ __forceinline__ void end(int turns, Body&& body) const {
    if (cluster > 1) collect(turns - 1, body);
  }
};

}  // namespace aoext::cuda
