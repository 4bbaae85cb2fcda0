// What the mma.sync kernels for many rows share: reads of stages, the order of tiles, the split-K reduction over blocks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda {

// Bytes / 4 neighbouring words of shared memory by one read.
template <int kWords>
__device__ __forceinline__ void read_shared(uint32_t (&v)[kWords], uint32_t from) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4)
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from));
  else if constexpr (kWords == 2)
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(from));
  else
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[0]) : "r"(from));
}

// Origin of a tile of T::kBlockN output channels by T::kBlockM rows of x. Blocks that run at the same time cover 8 tiles along M
// and their share along N, so that L2 holds what they read.
template <class T, class Count>
__device__ __forceinline__ void tile_origin(Count tile, Count tiles_n, int tiles_m, int64_t& n0, int64_t& m0) {
  constexpr int kTogether = 8;
  const Count strip = tile / (kTogether * tiles_n), rest = tile - strip * kTogether * tiles_n;
  const int height = static_cast<int>(min(Count{kTogether}, tiles_m - strip * kTogether));
  n0 = static_cast<int64_t>(rest / height) * T::kBlockN;
  m0 = static_cast<int64_t>(strip * kTogether + rest % height) * T::kBlockM;
}

// Split-K reduction over gridDim.y blocks: the last of a tile's to arrive adds the partial sums of all, in the order of K, and
// gets true; the others get false. Partials are [tiles, splits] of a block's sums in the order of its threads, counters [tiles],
// zero at first.
template <int kThreads, class Sum, int kRowTiles, int kColumns>
__device__ __forceinline__ bool reduce_splits(Sum (&sum)[kRowTiles][kColumns][4], Sum* partials, unsigned* counters) {
  using Four = std::conditional_t<std::is_same_v<Sum, int>, int4, float4>;
  constexpr int kBlock = kThreads * kRowTiles * kColumns;
  const int thread = threadIdx.x;
  Four* const partial = reinterpret_cast<Four*>(partials) + static_cast<int64_t>(blockIdx.x) * gridDim.y * kBlock + thread;
  const auto at = [&](unsigned split, int r, int j) { return partial + split * kBlock + (r * kColumns + j) * kThreads; };
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) __stcg(at(blockIdx.y, r, j), Four{sum[r][j][0], sum[r][j][1], sum[r][j][2], sum[r][j][3]});
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (thread == 0) is_last = atomicAdd(counters + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[r][j][e] = 0;
  for (unsigned split = 0; split < gridDim.y; ++split)
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const Four v = __ldcg(at(split, r, j));
        sum[r][j][0] += v.x, sum[r][j][1] += v.y, sum[r][j][2] += v.z, sum[r][j][3] += v.w;
      }
  return true;
}

}  // namespace aoext::cuda
