// How products of any size are walked: y[m, n] = sum over i of x[m, i] · w[n, i], for what faster kernels do not take.
//
// `walk_tile`: a block of 256 threads computes 64 × 64 outputs, 4 × 4 a thread, from tiles of 64 × 32 of x and w in shared
// memory. Threads keep the next tile in registers while they multiply.
// `walk_rows`: for few tokens or few channels. The 8 warps of a block share out the values of a few rows of w, neighbouring
// lanes neighbouring runs, for a few tokens; the next runs are on their way while these are multiplied. Partial sums meet in a
// fixed order, in registers and then in shared memory.
//
// Operands say what the values are and how they are read:
//
//   Value, Sum                     what is multiplied and what is added
//   M, N, length                   rows of x, rows of w, values in each
//   kRun                           neighbouring values of w that are read at once, from a multiple of kRun on
//   kTokens, kChannels             rows of x and of w that a block of walk_rows takes
//   input(m, i)                    one value of x
//   inputs(m, i, v)                a run of x; what lies past the row's end is 0, as in every run
//   raw(n, i) -> Raw               a run of w as it is stored
//   unpack(raw, n, i, w)           its values
//   Channel{operands, n}.run(i, w) both, for who reads on in one row
//   add(sum, x, w)                 sum + x · w
//   store(m, n, sum)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "cuda/kernels/int4.h"

namespace aoext::cuda::product_any {

constexpr int kTile = 64, kTileLength = 32, kTileThreads = 256;

inline int64_t tile_blocks(int64_t M, int64_t N) { return ceil_div(M, kTile) * ceil_div(N, kTile); }

template <class Operands>
__device__ __forceinline__ void walk_tile(const Operands& o) {
  using Value = typename Operands::Value;
  // One value of padding a step, in units of four: rows stay aligned for 16-byte reads.
  __shared__ __align__(16) Value xs[kTileLength][kTile + 4], ws[kTileLength][kTile + 4];
  constexpr int kPerThread = kTile * kTileLength / kTileThreads, kRun = Operands::kRun;
  const int thread = threadIdx.x;
  const int64_t tiles_n = (o.N + kTile - 1) / kTile;
  const int64_t m0 = blockIdx.x / tiles_n * kTile, n0 = blockIdx.x % tiles_n * kTile;

  // A warp reads 32 neighbouring values of one token, and 8 of each of 32 neighbouring channels.
  const int x_i = thread % kTileLength, x_m = thread / kTileLength;
  const int w_n = thread % kTile, w_i = thread / kTile * kPerThread;
  typename Operands::Channel channel{o, n0 + w_n};
  Value next_x[kPerThread], next_w[kPerThread / kRun][kRun];
  const auto load = [&](uint32_t i0) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t m = m0 + x_m + j * (kTileThreads / kTileLength);
      next_x[j] = i0 + x_i < o.length && m < o.M ? o.input(m, i0 + x_i) : Value{};
    }
#pragma unroll
    for (int j = 0; j < kPerThread / kRun; ++j) {
      const uint32_t i = i0 + w_i + j * kRun;
      if (i < o.length && n0 + w_n < o.N) {
        channel.run(i, next_w[j]);
      } else {
#pragma unroll
        for (int r = 0; r < kRun; ++r) next_w[j][r] = Value{};
      }
    }
  };

  const int tx = thread % 16 * 4, ty = thread / 16 * 4;
  typename Operands::Sum sum[4][4] = {};
  load(0);
  for (uint32_t i0 = 0; i0 < o.length; i0 += kTileLength) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      xs[x_i][x_m + j * (kTileThreads / kTileLength)] = next_x[j];
      ws[w_i + j][w_n] = next_w[j / kRun][j % kRun];
    }
    __syncthreads();
    if (i0 + kTileLength < o.length) load(i0 + kTileLength);
#pragma unroll 8
    for (int i = 0; i < kTileLength; ++i) {
      struct alignas(16) Four {
        Value v[4];
      };
      const Four a = *reinterpret_cast<const Four*>(&xs[i][ty]), b = *reinterpret_cast<const Four*>(&ws[i][tx]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[j][c] = Operands::add(sum[j][c], a.v[j], b.v[c]);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (m0 + ty + j < o.M && n0 + tx + c < o.N) o.store(m0 + ty + j, n0 + tx + c, sum[j][c]);
}

constexpr int kWarps = 8, kRowsThreads = 32 * kWarps;

template <class Operands>
int64_t rows_blocks(int64_t M, int64_t N) {
  return ceil_div(M, Operands::kTokens) * ceil_div(N, Operands::kChannels);
}

// Adds up each of kCount numbers over a warp, as a butterfly does; lane l is left with those from l · kCount / 32 on.
template <int kCount, int kDistance = 16, class Sum>
__device__ __forceinline__ void share_out_sums(Sum* sum, int lane) {
  constexpr int kLeft = kCount / 2;
  const bool upper = lane & kDistance;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const Sum given = upper ? sum[i] : sum[i + kLeft], kept = upper ? sum[i + kLeft] : sum[i];
    sum[i] = kept + __shfl_xor_sync(0xffffffff, given, kDistance);
  }
  if constexpr (kDistance > 1) share_out_sums<kLeft, kDistance / 2>(sum, lane);
}

template <class Operands>
__device__ __forceinline__ void walk_rows(const Operands& o) {
  using Value = typename Operands::Value;
  using Sum = typename Operands::Sum;
  using Raw = typename Operands::Raw;
  constexpr int kRun = Operands::kRun, kTokens = Operands::kTokens, kChannels = Operands::kChannels, kSums = kTokens * kChannels;
  constexpr int kAtOnce = 4;  // tokens
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Blocks that share what is read more often are neighbours.
  const int64_t tiles_m = (o.M + kTokens - 1) / kTokens, tiles_n = (o.N + kChannels - 1) / kChannels;
  const bool m_first = tiles_m < tiles_n;
  const int64_t m0 = (m_first ? blockIdx.x % tiles_m : blockIdx.x / tiles_n) * kTokens;
  const int64_t n0 = (m_first ? blockIdx.x / tiles_m : blockIdx.x % tiles_n) * kChannels;
  const int channels = static_cast<int>(min(int64_t{kChannels}, o.N - n0));
  const int tokens = static_cast<int>(min(int64_t{kTokens}, o.M - m0));

  Sum sum[kSums] = {};
  Raw next[kChannels] = {};
  const auto load = [&](uint32_t i) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      if (c < channels) next[c] = o.raw(n0 + c, i);
  };
  if (threadIdx.x * kRun < o.length) load(threadIdx.x * kRun);
  for (uint32_t i = threadIdx.x * kRun; i < o.length; i += kRowsThreads * kRun) {
    Value w[kChannels][kRun] = {};
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      if (c < channels) o.unpack(next[c], n0 + c, i, w[c]);
    if (i + kRowsThreads * kRun < o.length) load(i + kRowsThreads * kRun);
#pragma unroll
    for (int m = 0; m < kTokens; m += kAtOnce)
      if (m < tokens) {
        Value v[kAtOnce][kRun];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) o.inputs(min(m0 + m + j, o.M - 1), i, v[j]);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int r = 0; r < kRun; ++r)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
              Sum& s = sum[(m + j) * kChannels + c];
              s = Operands::add(s, v[j][r], w[c][r]);
            }
      }
  }

  __shared__ Sum partial[kWarps][kSums];
  static_assert(kSums % 32 == 0);
  share_out_sums<kSums>(sum, lane);
#pragma unroll
  for (int i = 0; i < kSums / 32; ++i) partial[warp][lane * (kSums / 32) + i] = sum[i];
  __syncthreads();
  const int m = threadIdx.x / kChannels, c = threadIdx.x % kChannels;
  if (m >= tokens || c >= channels) return;
  Sum total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += partial[i][threadIdx.x];
  o.store(m0 + m, n0 + c, total);
}

template <class Problem>
cudaError_t launch(void (*kernel)(Problem), int64_t blocks, int threads, const Problem& p, cudaStream_t stream) {
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace aoext::cuda::product_any
