// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for few rows of x: weight-only int4, limited by reading q.
// The plan takes this or int4_ring.cuh, whichever is faster; what this does not serve is left to that one.
//
// Memory. A k-tile of 16 output channels by 128 k is 1 KB of nibbles, for one warp, two 16-byte loads a lane. A warp takes one or
// two tiles of 16 output channels and a k-split of their k-tiles; it multiplies one stage, in registers (one or two k-tiles of
// each tile, 2 to 4 KB), while the next is in flight: 16 to 20 warps have 32 to 64 KB in flight. x lies in shared memory in the
// order in which mma reads it. few_rows.cuh has the loop, and adds the partial sums of warps and blocks. The order is fixed: mma,
// groups, warps, cluster.
//
// Operands are those of int4_operands.cuh.
//
// The kernel's parts: Loads brings stages of the weight to registers, StagedX brings x to shared memory, Sums multiplies, and
// Kernel gives them to few_rows.cuh's loop.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/element.h"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/int4_few_rows.cuh"
#include "cuda/kernels/int4_operands.cuh"

namespace aoext::cuda::int4_decode {

using int4_operands::arranged;
using int4_operands::divide;
using int4_operands::kTileK;
using int4_operands::kTileN;
using int4_operands::Number;
using int4_operands::operands;
using int4_operands::pow2;
using int4_operands::power_pair;
using int4_operands::ScaledUp;
using int4_operands::ScalePair;
using int4_operands::spread;
using int4_operands::word_k;

using Params = Int4FewRows;

__device__ __forceinline__ uint4 load_stream(const uint8_t* p) {  // read once: must not push x out of L1
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// What an instance is compiled for. X: type of x and y. S: type of scales. Sub: k that share a scale, 128 / Sub groups a k-tile.
// Rows: of x at most. Tiles: of a warp. KTiles: of a stage.
template <Element X, Element S, int Sub, int Rows, int Tiles, int KTiles>
struct Instance {
  using Num = Number<X>;
  using Pair = ScalePair<S>;
  static constexpr int kSub = Sub, kRows = Rows, kTiles = Tiles, kKTiles = KTiles;
  static constexpr int kSubs = kTileK / Sub, kOctets = (Rows + 7) / 8;
  static constexpr int kKTileX = Rows * 256, kKTileSums = kSubs * Rows * 8;  // bytes of shared memory
  static constexpr int kStageScales = KTiles * kSubs * Tiles;
};

template <class I>
struct Stage {
  static constexpr int kScales = (I::kStageScales + 3) / 4;
  uint4 w[I::kKTiles][2 * I::kTiles];              // of output channels 2g and 2g + 1 of each tile
  typename I::Pair scale[kScales], zero[kScales];  // lane t: items t, t + 4, … of (group, tile)
};

// Addresses in shared memory, in their order.
struct Shared {
  uint32_t barriers;  // two
  uint32_t x;         // X' [k-tile of the chunk][word][m][t] of 16 B
  uint32_t sums;      // {2^-e, sum x} [k-tile of the chunk][group][m]
  float* partial;     // sums

  __device__ __forceinline__ Shared(const Params& p, uint8_t* smem, int k_tile_x, int k_tile_sums) {
    barriers = shared_address(smem), x = barriers + 16;
    sums = x + p.chunk_k_tiles * k_tile_x;
    partial = reinterpret_cast<float*>(smem + (sums - barriers) + p.chunk_k_tiles * k_tile_sums);
  }
};

// Loads a warp's weights and scales, a stage at a time. Past an end the last weights are read again, and multiplied by zeros in
// X'.
template <class I>
struct Loads {
  const Params& p;
  const Position& at;
  const int row_bytes;
  const uint32_t scale_row_bytes;
  Cursor<I::kKTiles> cursor;
  const uint8_t* weight;
  int first;                    // the lane's first output channel
  uint32_t row[2 * I::kTiles];  // bytes from weight to the lane's rows
  int tile_scale;               // output channels from there to the next tile's

  __device__ __forceinline__ Loads(const Params& p, const Position& at)
      : p(p), at(at), row_bytes(static_cast<int>(p.K / 2)), scale_row_bytes(static_cast<uint32_t>(p.N) * I::Pair::kBytes) {
    cursor.start(p, at);
    aim();
  }

  __device__ __forceinline__ void aim() {
    const int last = static_cast<int>(p.N) - 1;
    first = min((cursor.group * at.tiles + at.tile) * kTileN + 2 * at.g, last) & ~1;
    const int left = last - first;
    weight = p.weight + static_cast<int64_t>(first) * row_bytes;
#pragma unroll
    for (int i = 0; i < 2 * I::kTiles; ++i) row[i] = min(i / 2 * kTileN + i % 2, left) * row_bytes;
    tile_scale = min(kTileN, left) & ~1;
  }

  __device__ __forceinline__ const uint8_t* weights_of(int k_tile) const {
    return weight + min(k_tile * (kTileK / 2) + at.t * 16, row_bytes - 16);
  }

  __device__ __forceinline__ void fetch(Stage<I>& stage) {
    if (cursor.is_inside(p)) {
#pragma unroll
      for (int u = 0; u < I::kKTiles; ++u) {
        const uint8_t* from = weights_of(cursor.k_tile + u);
#pragma unroll
        for (int i = 0; i < 2 * I::kTiles; ++i) stage.w[u][i] = load_stream(from + row[i]);
      }
#pragma unroll
      for (int i = 0; i < Stage<I>::kScales; ++i) {
        const int item = min(i * 4 + at.t, I::kStageScales - 1), in_tile = item % I::kTiles, sub = item / I::kTiles;
        const uint32_t group = min(divide(cursor.k_tile * I::kSubs + sub, p.sub_per_group, p.group_magic),
                                   static_cast<uint32_t>(p.scale_groups - 1));
        const int n = first + (in_tile ? tile_scale : 0);
        const uint64_t offset = static_cast<uint64_t>(group) * scale_row_bytes + n * I::Pair::kBytes;
        stage.scale[i].load(static_cast<const uint8_t*>(p.scale) + offset);
        stage.zero[i].load(static_cast<const uint8_t*>(p.zero_point) + offset);
      }
    }
    cursor.advance(p, at, [&] { aim(); });
  }

  // The first stage to L2 while the last kernel ends.
  __device__ __forceinline__ void prefetch() const {
    if (!cursor.is_inside(p)) return;
#pragma unroll
    for (int u = 0; u < I::kKTiles; ++u)
#pragma unroll
      for (int i = 0; i < 2 * I::kTiles; ++i)
        if (at.t % 2 == 0) prefetch_line(weights_of(cursor.k_tile + u) + row[i]);
  }
};

// Brings a chunk of x to shared memory. The four lanes of a group g take one (k-tile, m) at a time: they copy it to where X' will
// be, and once it is there (each lane reads what it copied) make X' of it in place. The wait for these copies does not wait for
// weights in flight.
template <class I>
struct StagedX {
  using Num = typename I::Num;

  const Params& p;
  const Position& at;
  const Shared& to;
  const StagedNumbers<typename Num::type, /*kCodes=*/true> numbers;

  template <class Body>
  __device__ __forceinline__ void each(int begin, int end, Body&& body) const {
    const int count = (end - begin + I::kKTiles - 1) / I::kKTiles * I::kKTiles * p.M;
    for (int i = at.warp * 8; i < count; i += at.warps * 8) {
      const int item = min(i + at.g, count - 1), k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
      body(k_tile, m, to.x + k_tile * I::kKTileX + m * 64 + at.t * 16, i + at.g < count);
    }
  }

  __device__ __forceinline__ void copy(int begin, int end) const {
    each(begin, end, [&](int k_tile, int m, uint32_t x, bool mine) {
      const int k0 = (begin + k_tile) * kTileK;
      const int64_t first = m * p.K + k0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = word_k<I::kSub>(at.t, j);
        if (mine) numbers.copy(x + j * I::kRows * 64, first + k, k0 + k < static_cast<int>(p.K));
      }
    });
  }

  __device__ __forceinline__ void arrange(int k_tile, int m, uint32_t x, bool mine) const {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = mine ? load_shared_16(x + j * I::kRows * 64) : uint4{0, 0, 0, 0};
    numbers.to_numbers(v);
    const ScaledUp<Num> up(v);
    const uint32_t even = power_pair<Num>(up.shift), odd = power_pair<Num>(up.shift - 4);
    float sum[I::kSubs][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 b = arranged<Num>(v[j], even, odd, sum[j * I::kSubs / 4]);
      if (mine) store_shared_16(x + j * I::kRows * 64, b);
    }
    if (at.t == at.g >> 1 && mine) {  // this lane's C holds column g
#pragma unroll
      for (int s = 0; s < I::kSubs; ++s) {
        const float total = (at.g & 1 ? sum[s][1] : sum[s][0]) * pow2(-Num::kOne - up.shift);
        store_shared(to.sums + k_tile * I::kKTileSums + (s * I::kRows + m) * 8, up.back(), total);
      }
    }
  }

  __device__ __forceinline__ void arrange_all(int begin, int end) const {
    each(begin, end, [&](int k_tile, int m, uint32_t x, bool mine) { arrange(k_tile, m, x, mine); });
  }
};

// The sums of a warp's output channels, in the order of mma's C.
template <class I>
struct Sums {
  using Num = typename I::Num;
  using T = typename Num::type;
  static constexpr int kTiles = I::kTiles, kSubs = I::kSubs, kOctets = I::kOctets;

  const Position& at;
  float y[kTiles][kOctets][4];
  uint32_t column[kOctets], column_sum[kOctets];  // addresses of this lane's row of x: as a column of B, and as two columns of C

  __device__ __forceinline__ Sums(const Params& p, const Position& at, const Shared& from) : at(at) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      column[o] = from.x + min(o * 8 + at.g, p.M - 1) * 64 + at.t * 16;
      column_sum[o] = from.sums + min(o * 8 + 2 * at.t, (p.M - 1) & ~1) * 8;
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles * kOctets * 4; ++i) y[i / (kOctets * 4)][i / 4 % kOctets][i % 4] = 0;
  }

  // The sums of u X' of a sub; u is a k-tile of the chunk.
  __device__ __forceinline__ void multiply_sub(const uint32_t (&w)[kTiles][2][4], int u, int s,
                                               float (&acc)[kTiles][kOctets][4]) const {
#pragma unroll
    for (int j = s * 4 / kSubs; j < (s + 1) * 4 / kSubs; ++j) {
      uint4 b[kOctets];
#pragma unroll
      for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column[o] + u * I::kKTileX + j * I::kRows * 64);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t even[4], odd[4];
        operands<Num>(w[i][0][j], w[i][1][j], even, odd);
#pragma unroll
        for (int o = 0; o < kOctets; ++o) mma<T>(acc[i][o], even, b[o].x, b[o].y);
#pragma unroll
        for (int o = 0; o < kOctets; ++o) mma<T>(acc[i][o], odd, b[o].z, b[o].w);
      }
    }
  }

  // A sub's scales and zero points, the `item`-th ones of the stage.
  __device__ __forceinline__ void scale_sub(const Stage<I>& stage, int u, int s, int item,
                                            const float (&acc)[kTiles][kOctets][4]) {
    uint4 b[kOctets];  // 2^-e, sum x of m, then of m + 1
#pragma unroll
    for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column_sum[o] + u * I::kKTileSums + s * I::kRows * 8);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int own = item * kTiles + i, source = (at.lane & ~3) | (own & 3);
      const bool one = I::kStageScales == 1;
      const float2 a = one ? stage.scale[0].get() : stage.scale[own / 4].from(source).get();
      float2 z = one ? stage.zero[0].get() : stage.zero[own / 4].from(source).get();
      if constexpr (!Num::kNormal) z.x = fmaf(-8.f, a.x, z.x), z.y = fmaf(-8.f, a.y, z.y);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        const float back[2] = {__uint_as_float(b[o].x), __uint_as_float(b[o].z)};
        const float sum[2] = {__uint_as_float(b[o].y), __uint_as_float(b[o].w)};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          y[i][o][c] = fmaf(z.x, sum[c], fmaf(a.x * back[c], acc[i][o][c], y[i][o][c]));
          y[i][o][2 + c] = fmaf(z.y, sum[c], fmaf(a.y * back[c], acc[i][o][2 + c], y[i][o][2 + c]));
        }
      }
    }
  }

  // A stage: from k-tile `first` of the chunk on.
  __device__ __forceinline__ void multiply(const Stage<I>& stage, int first) {
#pragma unroll
    for (int u = 0; u < I::kKTiles; ++u) {
      uint32_t w[kTiles][2][4];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        uint4 v = stage.w[u][i];
        spread<I::kSub>(v, at.t);
        w[i / 2][i % 2][0] = v.x, w[i / 2][i % 2][1] = v.y, w[i / 2][i % 2][2] = v.z, w[i / 2][i % 2][3] = v.w;
      }
#pragma unroll
      for (int s = 0; s < kSubs; ++s) {
        float acc[kTiles][kOctets][4] = {};
        multiply_sub(w, first + u, s, acc);
        scale_sub(stage, first + u, s, u * kSubs + s, acc);
      }
    }
  }
};

// What few_rows.cuh's loop asks for.
template <class I>
struct Kernel {
  const Params& p;
  const Position& at;
  const SplitKReduction<float>& reduction;
  const StagedX<I>& x;
  Loads<I>& loads;
  Stage<I>& next;
  Sums<I> sums;

  __device__ __forceinline__ void begin(int) { sums.clear(); }

  __device__ __forceinline__ void stage_x(int begin, int end, bool first) {
    if (!first) x.copy(begin, end);
    wait_all_copies();
    x.arrange_all(begin, end);
  }

  __device__ __forceinline__ void multiply(int /*group*/, int begin, int end, int k_tile) {
    const Stage<I> now = next;  // waits for it, and only then are more loads in flight
    loads.fetch(next);
    if (begin + k_tile < end) sums.multiply(now, k_tile);
  }

  __device__ __forceinline__ void finish(int turn) {
#pragma unroll
    for (int i = 0; i < I::kTiles; ++i) reduction.put(turn, at.tile + i, at.k_split, sums.y[i]);
  }

  __device__ __forceinline__ void store(int turn, int tile, int m, float sum) const {
    store_int4_output<typename I::Num::type>(p, at, turn, tile, m, sum);
  }
};

// Threads: of a block at most.
template <Element X, Element S, int Sub, int Rows, int Tiles, int KTiles, int Threads>
__global__ void __launch_bounds__(Threads, 1) int4_decode_kernel(const __grid_constant__ Params p) {
  using I = Instance<X, S, Sub, Rows, Tiles, KTiles>;
  extern __shared__ __align__(16) uint8_t smem[];
  const Position at(p, Tiles);
  const Shared shared(p, smem, I::kKTileX, I::kKTileSums);
  const SplitKReduction<float> reduction(p, at, shared.partial, shared.barriers);
  Loads<I> loads(p, at);
  loads.prefetch();
  wait_for_last_kernel();
  start_next_kernel();
  Stage<I> next = {};
  loads.fetch(next);
  const StagedX<I> x{p, at, shared, {p}};
  x.copy(at.split_begin, min(at.split_begin + p.chunk_k_tiles, at.split_end));
  reduction.start();
  Kernel<I> kernel{p, at, reduction, x, loads, next, Sums<I>(p, at, shared)};
  for_each_turn<KTiles>(p, at, reduction, kernel);
}

}  // namespace aoext::cuda::int4_decode
