// How products of any size are computed: y[m, n] = sum over i of x[m, i] · w[n, i], for what faster kernels do not take.
//
// `compute_tile`: a block of 256 threads computes 64 × 64 outputs, 4 × 4 a thread, from tiles of 64 × 32 of x and w in shared
// memory. Threads hold the next tile in registers, unconverted, while they multiply.
// `compute_rows`: for few rows of x or few output channels. The 8 warps of a block split the values of a few rows of w among
// them, neighbouring lanes taking neighbouring runs, for a few rows of x; the next runs are in flight while these are multiplied.
// Partial sums are added in a fixed order, in registers and then in shared memory.
//
// Operands say what the values are and how they are read:
//
//   Value, Sum                     what is multiplied and what is added
//   M, N, length                   rows of x, rows of w, values in each
//   kRun                           neighbouring values of w that are read at once, from a multiple of kRun on
//   kBlockM, kBlockN               rows of x and output channels of a block of compute_rows
//   raw_x(m, i) -> RawX            a value of x as it is stored
//   value(raw_x)
//   xs(m, i, v)                    a run of x; what lies past the row's end is 0, as in every run
//   raw_w(n, i) -> RawW            a run of w as it is stored
//   ws(raw_w, n, i, w)             the runs of kChannels rows from n on; from N on anything will do
//   Channel{operands, n}           a row of w: .ws(raw_w, i, w)
//   add(sum, x, w)                 sum + x · w
//   store(m, n, sum)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "cuda/kernels/sizes.h"

namespace aoext::cuda::product_any {

constexpr int kTile = 64, kTileLength = 32, kTileThreads = 256;

inline int64_t tile_blocks(int64_t M, int64_t N) { return ceil_div(M, kTile) * ceil_div(N, kTile); }

// Where the outputs of a block begin: a row of x, an output channel.
struct Place {
  int64_t m, n;
};

__device__ __forceinline__ Place tile_place(int64_t N) {
  const uint32_t tiles_n = static_cast<uint32_t>((N + kTile - 1) / kTile);
  return {static_cast<int64_t>(blockIdx.x / tiles_n) * kTile, static_cast<int64_t>(blockIdx.x % tiles_n) * kTile};
}

template <class Operands>
__device__ __forceinline__ void compute_tile(const Operands& o, Place place) {
  using Value = typename Operands::Value;
  struct alignas(16) Four {
    Value v[4];
  };
  // One value of padding a step, in units of four: rows stay aligned for 16-byte reads.
  __shared__ __align__(16) Value xs[kTileLength][kTile + 4], ws[kTileLength][kTile + 4];
  constexpr int kPerThread = kTile * kTileLength / kTileThreads, kStep = kTileThreads / kTileLength, kRun = Operands::kRun;
  const int thread = threadIdx.x;
  const int64_t m0 = place.m, n0 = place.n;

  // A warp reads 32 neighbouring values of one row, and 8 of each of 32 neighbouring channels.
  const int x_i = thread % kTileLength, x_m = thread / kTileLength;
  const int w_n = thread % kTile, w_i = thread / kTile * kPerThread;
  typename Operands::Channel channel{o, n0 + w_n};
  const auto w_valid = [&](uint32_t i) { return i < o.length && n0 + w_n < o.N; };
  typename Operands::RawX next_x[kPerThread];
  typename Operands::RawW next_w[kPerThread / kRun];
  const auto load = [&](uint32_t i0) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t m = m0 + x_m + j * kStep;
      next_x[j] = i0 + x_i < o.length && m < o.M ? o.raw_x(m, i0 + x_i) : typename Operands::RawX{};
    }
#pragma unroll
    for (int j = 0; j < kPerThread / kRun; ++j) {
      const uint32_t i = i0 + w_i + j * kRun;
      next_w[j] = w_valid(i) ? o.raw_w(n0 + w_n, i) : typename Operands::RawW{};
    }
  };

  const int tx = thread % 16 * 4, ty = thread / 16 * 4;
  typename Operands::Sum sum[4][4] = {};
  load(0);
  for (uint32_t i0 = 0; i0 < o.length; i0 += kTileLength) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) xs[x_i][x_m + j * kStep] = o.value(next_x[j]);
#pragma unroll
    for (int j = 0; j < kPerThread / kRun; ++j) {
      Value w[kRun] = {};
      const uint32_t i = i0 + w_i + j * kRun;
      if (w_valid(i)) channel.ws(next_w[j], i, w);
#pragma unroll
      for (int r = 0; r < kRun; ++r) ws[w_i + j * kRun + r][w_n] = w[r];
    }
    __syncthreads();
    if (i0 + kTileLength < o.length) load(i0 + kTileLength);
#pragma unroll 8
    for (int i = 0; i < kTileLength; ++i) {
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
  return ceil_div(M, Operands::kBlockM) * ceil_div(N, Operands::kBlockN);
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

// Blocks that share what there is more of are neighbours.
template <class Operands>
__device__ __forceinline__ Place rows_place(int64_t M, int64_t N) {
  constexpr int kBlockM = Operands::kBlockM, kBlockN = Operands::kBlockN;
  const uint32_t tiles_m = static_cast<uint32_t>((M + kBlockM - 1) / kBlockM);
  const uint32_t tiles_n = static_cast<uint32_t>((N + kBlockN - 1) / kBlockN);
  const uint32_t inner = min(tiles_m, tiles_n), outer_tile = blockIdx.x / inner, inner_tile = blockIdx.x - outer_tile * inner;
  return {static_cast<int64_t>(tiles_m < tiles_n ? inner_tile : outer_tile) * kBlockM,
          static_cast<int64_t>(tiles_m < tiles_n ? outer_tile : inner_tile) * kBlockN};
}

template <class Operands>
__device__ __forceinline__ void compute_rows(const Operands& o, Place place) {
  using Value = typename Operands::Value;
  using Sum = typename Operands::Sum;
  constexpr int kRun = Operands::kRun, kBlockM = Operands::kBlockM, kBlockN = Operands::kBlockN;
  constexpr int kAtOnce = 2;  // rows
  constexpr int kSums = kBlockM * kBlockN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t m0 = place.m, n0 = place.n;
  const int rows = static_cast<int>(min(int64_t{kBlockM}, o.M - m0));

  // Past the last row and channel the last ones serve again: loads need no branches, sums are not stored.
  Sum sum[kSums] = {};
  typename Operands::RawW next[kBlockN] = {};
  const auto load = [&](uint32_t i) {
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) next[c] = o.raw_w(min(n0 + c, o.N - 1), i);
  };
  if (threadIdx.x * kRun < o.length) load(threadIdx.x * kRun);
  for (uint32_t i = threadIdx.x * kRun; i < o.length; i += kRowsThreads * kRun) {
    Value w[kBlockN][kRun];
    o.ws(next, n0, i, w);
    if (i + kRowsThreads * kRun < o.length) load(i + kRowsThreads * kRun);
#pragma unroll
    for (int m = 0; m < kBlockM; m += kAtOnce)
      if (m < rows) {
        Value v[kAtOnce][kRun];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) o.xs(min(m0 + m + j, o.M - 1), i, v[j]);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int r = 0; r < kRun; ++r)
#pragma unroll
            for (int c = 0; c < kBlockN; ++c) {
              Sum& s = sum[(m + j) * kBlockN + c];
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
  const int m = threadIdx.x / kBlockN;
  const int64_t n = n0 + threadIdx.x % kBlockN;
  if (m >= rows || n >= o.N) return;
  Sum total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += partial[i][threadIdx.x];
  o.store(m0 + m, n, total);
}

template <class Operands>
__device__ __forceinline__ void compute_tile(const Operands& o) {
  compute_tile(o, tile_place(o.N));
}
template <class Operands>
__device__ __forceinline__ void compute_rows(const Operands& o) {
  compute_rows(o, rows_place<Operands>(o.M, o.N));
}

template <class Problem>
cudaError_t launch(void (*kernel)(Problem), int64_t blocks, int threads, const Problem& p, cudaStream_t stream) {
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
  return cudaGetLastError();
}

// By `rows`, which calls compute_rows, up to `few_rows` rows of x and for few output channels; else by `tile`, which calls
// compute_tile.
template <class Operands, class Problem>
cudaError_t launch(void (*tile)(Problem), void (*rows)(Problem), int64_t few_rows, const Problem& p, cudaStream_t stream) {
  if (p.M <= few_rows || p.N < 32) return launch(rows, rows_blocks<Operands>(p.M, p.N), kRowsThreads, p, stream);
  return launch(tile, tile_blocks(p.M, p.N), kTileThreads, p, stream);
}

// What operands have in common whose w is read byte by byte, `run` values each, and multiplied in float32.
template <class Problem, int run>
struct ByteOperands {
  using Value = float;
  using Sum = float;
  using RawW = uint8_t;
  static constexpr int kRun = run, kBlockM = 8, kBlockN = 4;

  const Problem& p;
  int64_t M, N;
  uint32_t length;

  __device__ __forceinline__ explicit ByteOperands(const Problem& p) : p(p), M(p.M), N(p.N), length(static_cast<uint32_t>(p.K)) {}

  __device__ __forceinline__ uint8_t raw_w(int64_t n, uint32_t k) const {
    return static_cast<const uint8_t*>(p.weight)[n * (p.K / kRun) + k / kRun];
  }
  static __device__ __forceinline__ float add(float sum, float x, float w) { return fmaf(x, w, sum); }
};

}  // namespace aoext::cuda::product_any
