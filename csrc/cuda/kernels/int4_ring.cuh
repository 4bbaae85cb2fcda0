// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for few rows of x: weight-only int4, limited by reading q.
//
// Memory. A k-tile of 16 output channels by 128 k is 1 KB of nibbles. A warp takes one or two tiles of 16 output channels and a
// k-split of their k-tiles, through a ring of stages of its own in shared memory: a stage is 2 KB, two k-tiles of one tile or one
// k-tile of two, with their scales and zero points. Two stages are always in flight, 64 KB a multiprocessor, or three of few
// warps; no warp waits for another one. x lies in shared memory in the order in which mma reads it. few_rows.cuh has the loop,
// and adds the partial sums of warps and blocks. The order is fixed: mma, groups, warps, cluster.
//
// Operands are those of int4_operands.cuh; here a group's sum of u X' begins at -8 sum X', and 2^-e scales a k-tile's sums at
// once.
//
// Groups of fewer than 128 k. mma sums over the four lanes t, so each word of a lane comes from another quarter of a k-tile. For
// one or two rows of x, which leave six columns of mma free, every lane keeps a quarter to itself instead: column (quarter, m) is
// zero but in the lanes of that quarter, lane t gets the sums of quarter t, and the quarters are added at the very end. So these
// groups cost no more operations than groups of 128.
//
// The kernel's parts: Copies brings stages of the weight to the ring, StagedX brings x to shared memory, Sums multiplies, and
// Kernel gives them to few_rows.cuh's loop.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/element.h"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/int4_few_rows.cuh"
#include "cuda/kernels/int4_operands.cuh"

namespace aoext::cuda::int4_ring {

using int4_operands::arranged;
using int4_operands::divide;
using int4_operands::kTileK;
using int4_operands::kTileN;
using int4_operands::lane_sum;
using int4_operands::Number;
using int4_operands::operands;
using int4_operands::pow2;
using int4_operands::power_pair;
using int4_operands::ScaledUp;
using int4_operands::ScalePair;
using int4_operands::word_k;

constexpr int kKTileBytes = kTileN * 64;
constexpr int kStageTiles = 2;  // of a stage, in tiles times k-tiles

struct Params : Int4FewRows {
  int scale_bytes;  // that are copied at once: 16 or 4
  int depth;        // stages of a ring: 2 or 3
  int ahead;        // bytes of each output channel that are prefetched into L2 while the last kernel ends
};

// A stage has weights, and scales and zero points where those come through the ring.
__host__ __device__ constexpr int stage_bytes(bool scales, int sub, int scale_bytes) {
  return kStageTiles * (kKTileBytes + (scales ? kTileK / sub * 2 * kTileN * scale_bytes : 0));
}
// What a k-tile of x takes of shared memory: X', the sums of its groups, 2^-e; for an even number of rows.
__host__ __device__ constexpr int k_tile_x_bytes(int M) { return M * kTileK * 2; }
__host__ __device__ constexpr int k_tile_sum_bytes(int M, int sub) { return (M + 1) / 2 * 2 * (kTileK / sub) * 8; }
__host__ __device__ constexpr int k_tile_back_bytes(int M) { return (M + 1) / 2 * 2 * 4; }
constexpr int kFixedBytes = 32;  // 16 zeros, two barriers

// What an instance is compiled for. X: type of x and y. S: type of scales. Sub: k that share a scale, 128 / Sub groups a k-tile.
// Rows: of x, 8 or 16 at most; 2 where a lane keeps a quarter to itself. Ringed: scales come through the ring; otherwise they are
// not aligned for that, and are read from global memory as they are used. Tiles: of a warp.
template <Element X, Element S, int Sub, int Rows, bool Ringed, int Tiles>
struct Instance {
  using Num = Number<X>;
  using Pair = ScalePair<S>;
  static constexpr int kSub = Sub, kTiles = Tiles;
  static constexpr bool kRinged = Ringed, kQuarters = Rows == 2, kCodes = Rows <= kRingCodesRows;
  static constexpr bool kSpread = Sub < kTileK && !kQuarters;  // words of a sub over the four lanes
  static constexpr int kSubs = kTileK / Sub, kLaneSubs = kQuarters ? 1 : kSubs, kOctets = (Rows + 7) / 8;
  static constexpr int kStageKTiles = kStageTiles / Tiles;
  static constexpr int kHalf = kTileN * Pair::kBytes;  // scales of a tile and sub, or their zero points
  static constexpr int kWeightBytes = kStageTiles * kKTileBytes;
  static constexpr int kStageBytes = stage_bytes(Ringed, Sub, Pair::kBytes);
  // Independent accumulators, so that one mma does not wait for another.
  static constexpr int kChains = Tiles == 1 && kOctets == 1 && kLaneSubs == 1 ? 2 : 1;
  static_assert(!kQuarters || Sub == 32);
};

// Addresses in shared memory, in their order.
struct Shared {
  uint32_t x;      // X' [k-tile of the chunk][word][m][t] of 16 B
  uint32_t ring;   // of this warp
  uint32_t zeros;  // 16 B, and two barriers
  uint32_t sums;   // {-8 sum X', sum x} [k-tile of the chunk][group][m]
  uint32_t backs;  // 2^-e [k-tile of the chunk][m]
  float* partial;  // sums

  __device__ __forceinline__ Shared(const Params& p, const Position& at, uint8_t* smem, int sub, int stage_bytes) {
    x = shared_address(smem);
    ring = x + p.chunk_k_tiles * k_tile_x_bytes(p.M) + at.warp * p.depth * stage_bytes;
    uint8_t* const beyond = smem + p.chunk_k_tiles * k_tile_x_bytes(p.M) + at.warps * p.depth * stage_bytes;
    zeros = shared_address(beyond), sums = zeros + kFixedBytes;
    backs = sums + p.chunk_k_tiles * k_tile_sum_bytes(p.M, sub);
    partial = reinterpret_cast<float*>(beyond + (backs - zeros) + p.chunk_k_tiles * k_tile_back_bytes(p.M));
  }
  __device__ __forceinline__ uint32_t barriers() const { return zeros + 16; }
};

// The warp's first output channel in a group of tiles.
__device__ __forceinline__ int first_row(const Position& at, int group) { return (group * at.tiles + at.tile) * kTileN; }

template <class I>
__device__ __forceinline__ uint32_t scale_group(const Params& p, int k_tile, int sub) {
  return divide(k_tile * I::kSubs + sub, p.sub_per_group, p.group_magic);
}

// Where a lane's 16 bytes lie in a stage, so that word j of all lanes is read from different banks.
template <class I>
__device__ __forceinline__ int swizzle(const Position& at) {
  return I::kSpread ? at.g >> 1 & 3 : 0;
}

// Copies a warp's weights and scales to its ring, a stage at a time. For output channels past the last, the last is read, and
// nothing stored; k past K are zeros.
template <class I>
struct Copies {
  const Params& p;
  const Position& at;
  const uint32_t ring;
  const int row_bytes;
  Cursor<I::kStageKTiles> cursor;
  const uint8_t* weight;
  uint32_t row[2 * I::kTiles];  // bytes from weight to the lane's rows

  __device__ __forceinline__ Copies(const Params& p, const Position& at, uint32_t ring)
      : p(p), at(at), ring(ring), row_bytes(static_cast<int>(p.K / 2)) {
    cursor.start(p, at);
    aim();
  }

  __device__ __forceinline__ void aim() {
    const int last = static_cast<int>(p.N) - 1, first = min(first_row(at, cursor.group) + 2 * at.g, last);
    weight = p.weight + static_cast<int64_t>(first) * row_bytes + at.t * 16;
#pragma unroll
    for (int i = 0; i < 2 * I::kTiles; ++i) row[i] = min(i / 2 * kTileN + i % 2, last - first) * row_bytes;
  }

  __device__ __forceinline__ void copy_weights(uint32_t to) const {
    const uint32_t piece = to + at.g * 64 + (at.t ^ swizzle<I>(at)) * 16;
#pragma unroll
    for (int u = 0; u < I::kStageKTiles; ++u) {
      const int byte = (cursor.k_tile + u) * (kTileK / 2);
      const bool inside = byte + at.t * 16 < row_bytes;
      const uint8_t* from = weight + (inside ? byte : 0);
#pragma unroll
      for (int i = 0; i < 2 * I::kTiles; ++i) copy16(piece + (u * 2 * I::kTiles + i) * 512, from + row[i], inside);
    }
  }

  // kBytes at once, to [k-tile][group][tile][scale, zero point][output channel].
  template <int kBytes>
  __device__ __forceinline__ void copy_scales(uint32_t to) const {
    constexpr int kPieces = I::kHalf / kBytes, kAll = kStageTiles * I::kSubs * 2 * kPieces;
#pragma unroll(kBytes == 16 ? 4 : 1)
    for (int i = 0; i < kAll; i += 32) {
      const int piece = i + at.lane, item = piece / (2 * kPieces), in_warp = item % I::kTiles;
      const int n = first_row(at, cursor.group) + in_warp * kTileN + piece % kPieces * (kBytes / I::Pair::kBytes);
      const int64_t group = scale_group<I>(p, cursor.k_tile, item / I::kTiles);
      const bool inside = n < p.N && group < p.scale_groups;
      const void* from = piece / kPieces % 2 ? p.zero_point : p.scale;
      if (inside) from = static_cast<const uint8_t*>(from) + (group * p.N + n) * I::Pair::kBytes;
      if (kAll % 32 == 0 || piece < kAll) copy<kBytes>(to + piece * kBytes, from, inside);
    }
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (cursor.is_inside(p)) {
      const uint32_t to = ring + slot * I::kStageBytes;
      copy_weights(to);
      if constexpr (I::kRinged) {
        if (p.scale_bytes == 16)
          copy_scales<16>(to + I::kWeightBytes);
        else
          copy_scales<4>(to + I::kWeightBytes);
      }
    }
    commit_copies();
    cursor.advance(p, at, [&] { aim(); });
  }
};

// Brings x to shared memory. The four lanes of a group g take one (k-tile, m).
template <class I>
struct StagedX {
  using Num = typename I::Num;

  struct Item {
    int k_tile, m;
    bool mine;
  };

  const Params& p;
  const Position& at;
  const Shared& to;
  const StagedNumbers<typename Num::type, I::kCodes> numbers;

  __device__ __forceinline__ Item item_of(int i, int count) const {
    const int item = min(i + at.g, count - 1), k_tile = item * p.m_magic >> 20;
    return Item{k_tile, item - k_tile * p.M, i + at.g < count};
  }

  __device__ __forceinline__ void load(const Item& item, int begin, uint4 (&v)[4]) const {
    const int k0 = (begin + item.k_tile) * kTileK;
    const int64_t first = item.m * p.K + k0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = word_k<I::kSpread ? I::kSub : kTileK>(at.t, j);
      v[j] = item.mine && k0 + k < static_cast<int>(p.K) ? numbers.load(first + k) : uint4{0, 0, 0, 0};
    }
  }

  // 2^kOne sum X' of a sub.
  __device__ __forceinline__ void store_sum(const Item& item, int sub, float scaled, int shift) const {
    const uint32_t sums = to.sums + item.k_tile * k_tile_sum_bytes(p.M, I::kSub) + item.m * 8;
    const float begin = Num::kNormal ? 0.f : -8 * pow2(Num::kUlp - Num::kOne) * scaled;
    store_shared(sums + sub * k_tile_sum_bytes(p.M, kTileK), begin, scaled * pow2(-Num::kOne - shift));
  }

  __device__ __forceinline__ void store(const Item& item, uint4 (&v)[4]) const {
    numbers.to_numbers(v);
    const ScaledUp<Num> up(v);
    const uint32_t even = power_pair<Num>(up.shift), odd = power_pair<Num>(up.shift - 4);
    const uint32_t x = to.x + item.k_tile * k_tile_x_bytes(p.M) + item.m * 64 + at.t * 16;
    float sum[I::kLaneSubs][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 b = I::kQuarters ? arranged<Num>(v[j], even, odd) : arranged<Num>(v[j], even, odd, sum[j * I::kLaneSubs / 4]);
      if (item.mine) store_shared_16(x + j * p.M * 64, b);
      if constexpr (I::kQuarters) sum[0][0] += lane_sum<Num>(v[j]);
    }
    if (I::kQuarters && item.mine) store_sum(item, at.t, sum[0][0] * pow2(Num::kOne + up.shift), up.shift);
    if (at.t == at.g >> 1 && item.mine) {  // this lane's C holds column g
#pragma unroll
      for (int s = 0; s < I::kLaneSubs && !I::kQuarters; ++s) store_sum(item, s, at.g & 1 ? sum[s][1] : sum[s][0], up.shift);
      store_shared(to.backs + item.k_tile * k_tile_back_bytes(p.M) + item.m * 4, up.back());
    }
  }
};

// Scales and zero points of a stage that do not come through the ring.
template <class I>
struct Loose {
  static constexpr int kCount = I::kRinged ? 1 : I::kStageKTiles * I::kLaneSubs * I::kTiles;
  typename I::Pair scale[kCount], zero[kCount];

  __device__ __forceinline__ void read(const Params& p, const Position& at, int group, int k_tile) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int n = min(first_row(at, group) + i % I::kTiles * kTileN + 2 * at.g, static_cast<int>(p.N) - 1), us = i / I::kTiles;
      const int64_t row =
          min(scale_group<I>(p, k_tile, I::kQuarters ? us * I::kSubs + at.t : us), static_cast<uint32_t>(p.scale_groups - 1));
      scale[i].read(p.scale, row * p.N + n, n + 1 < p.N);
      zero[i].read(p.zero_point, row * p.N + n, n + 1 < p.N);
    }
  }
};

// The sums of a warp's output channels, in the order of mma's C.
template <class I>
struct Sums {
  using Num = typename I::Num;
  using T = typename Num::type;
  static constexpr int kTiles = I::kTiles, kOctets = I::kOctets, kChains = I::kChains;

  const Params& p;
  const Position& at;
  const Shared& from;
  float y[kTiles][kOctets][4];
  // This lane's row of x: address as a column of B, and as two columns of C.
  uint32_t column[kOctets], pair[kOctets];
  uint32_t x_stride, weights_at, scales_at;

  __device__ __forceinline__ Sums(const Params& p, const Position& at, const Shared& from) : p(p), at(at), from(from) {
    const int g = at.g, t = at.t;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      column[o] = from.x + min(o * 8 + g, p.M - 1) * 64 + t * 16;
      pair[o] = I::kQuarters ? 0 : min(o * 8 + 2 * t, (p.M - 1) & ~1);
    }
    x_stride = p.M * 64;
    if (I::kQuarters && (g >> 1 != t || (g & 1) >= p.M)) column[0] = from.zeros, x_stride = 0;
    if (I::kQuarters && g >> 1 == t && (g & 1) < p.M) column[0] = from.x + (g & 1) * 64 + t * 16;
    weights_at = from.ring + g * 64 + (I::kSpread ? swizzle<I>(at) * 16 + t * 4 : t * 16);
    scales_at = from.ring + I::kWeightBytes + (I::kQuarters ? t * kTiles * 2 * I::kHalf : 0) + g * 2 * I::Pair::kBytes;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles * kOctets * 4; ++i) y[i / (kOctets * 4)][i / 4 % kOctets][i % 4] = 0;
  }

  // A k-tile of the stage in this place of the ring.
  __device__ __forceinline__ void load_weights(uint32_t (&w)[2 * kTiles][4], int slot, int u) const {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const uint32_t at = weights_at + slot * I::kStageBytes;
      if constexpr (I::kSpread) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w[i][j] = load_shared_word((at ^ j * 16) + (u * 2 * kTiles + i) * 512);
      } else {
        const uint4 v = load_shared_16(at + (u * 2 * kTiles + i) * 512);
        w[i][0] = v.x, w[i][1] = v.y, w[i][2] = v.z, w[i][3] = v.w;
      }
    }
  }

  // The sums of u X' of a sub, and of x; u is a k-tile of the chunk.
  __device__ __forceinline__ void multiply_sub(const uint32_t (&w)[2 * kTiles][4], int u, int s,
                                               float (&acc)[kChains][kTiles][kOctets][4], float (&sum)[kOctets][2]) const {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const uint4 b = load_shared_16(from.sums + u * k_tile_sum_bytes(p.M, I::kSub) + pair[o] * 8 +
                                     (I::kQuarters ? at.t * 16 : s * k_tile_sum_bytes(p.M, kTileK)));
      sum[o][0] = __uint_as_float(b.y), sum[o][1] = __uint_as_float(b.w);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int c = 0; c < 4 && !Num::kNormal; ++c) acc[0][i][o][c] = __uint_as_float(c % 2 ? b.z : b.x);
    }
#pragma unroll
    for (int j = s * 4 / I::kLaneSubs; j < (s + 1) * 4 / I::kLaneSubs; ++j) {
      uint4 b[kOctets];
#pragma unroll
      for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column[o] + (u * 4 + j) * x_stride);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t even[4], odd[4];
        operands<Num>(w[2 * i][j], w[2 * i + 1][j], even, odd);
#pragma unroll
        for (int o = 0; o < kOctets; ++o) mma<T>(acc[0][i][o], even, b[o].x, b[o].y);
#pragma unroll
        for (int o = 0; o < kOctets; ++o) mma<T>(acc[kChains - 1][i][o], odd, b[o].z, b[o].w);
      }
    }
  }

  // A stage: from k-tile `first` of the chunk on.
  __device__ __forceinline__ void multiply(int slot, int first, const Loose<I>& loose) {
#pragma unroll
    for (int u = 0; u < I::kStageKTiles; ++u) {
      uint32_t w[2 * kTiles][4];
      load_weights(w, slot, u);
      float part[kTiles][kOctets][4];
#pragma unroll
      for (int s = 0; s < I::kLaneSubs; ++s) {
        float acc[kChains][kTiles][kOctets][4] = {}, sum[kOctets][2];
        multiply_sub(w, first + u, s, acc, sum);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const int item = (u * I::kLaneSubs + s) * kTiles + i;
          typename I::Pair scale = loose.scale[I::kRinged ? 0 : item], zero = loose.zero[I::kRinged ? 0 : item];
          if constexpr (I::kRinged) {
            const uint32_t at = scales_at + slot * I::kStageBytes + ((u * I::kSubs + s) * kTiles + i) * 2 * I::kHalf;
            scale.read_shared(at), zero.read_shared(at + I::kHalf);
          }
          const float2 a = scale.get(), z = zero.get();
#pragma unroll
          for (int o = 0; o < kOctets; ++o)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const float group = kChains == 1 ? acc[0][i][o][c] : acc[0][i][o][c] + acc[kChains - 1][i][o][c];
              const float as = c < 2 ? a.x : a.y;
              part[i][o][c] = s == 0 ? as * group : fmaf(as, group, part[i][o][c]);
              y[i][o][c] = fmaf(c < 2 ? z.x : z.y, sum[o][c % 2], y[i][o][c]);
            }
        }
      }
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        const float2 back = load_shared_pair(from.backs + (first + u) * k_tile_back_bytes(p.M) + pair[o] * 4);
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) y[i][o][c] = fmaf(c % 2 ? back.y : back.x, part[i][o][c], y[i][o][c]);
      }
    }
  }

  // Adds the sums of lanes that kept quarters to themselves.
  __device__ __forceinline__ void add_quarters() {
    if constexpr (I::kQuarters) {
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        float& sum = y[i / 4][0][i % 4];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
      }
    }
  }
};

// What few_rows.cuh's loop asks for.
template <class I>
struct Kernel {
  const Params& p;
  const Position& at;
  const Shared& shared;
  const SplitKReduction<float>& reduction;
  Copies<I>& copies;
  Sums<I> sums;
  int slot = 0;  // of the ring, that is multiplied next

  __device__ __forceinline__ void begin(int) { sums.clear(); }

  // The first stages are asked for behind the first x, which would come late behind them.
  __device__ __forceinline__ void stage_x(int begin, int end, bool first) {
    const StagedX<I> x{p, at, shared, {p}};
    const int count = (end - begin + I::kStageKTiles - 1) / I::kStageKTiles * I::kStageKTiles * p.M;
    int i = at.warp * 8;
    do {
      uint4 v[4];
      const auto item = x.item_of(i, count);
      x.load(item, begin, v);
#pragma unroll 1
      for (int stage = 0; first && stage < p.depth; ++stage) copies.fetch(stage);
      first = false;
      if (i < count) x.store(item, v);
      i += at.warps * 8;
    } while (i < count);
  }

  __device__ __forceinline__ void multiply(int group, int begin, int end, int k_tile) {
    Loose<I> loose;
    if (!I::kRinged && begin + k_tile < end) loose.read(p, at, group, begin + k_tile);
    if (p.depth == 2)
      wait_copies<1>();
    else
      wait_copies<2>();
    __syncwarp();
    if (begin + k_tile < end) sums.multiply(slot, k_tile, loose);
    __syncwarp();
    copies.fetch(slot);
    slot = slot + 1 == p.depth ? 0 : slot + 1;
  }

  __device__ __forceinline__ void finish(int turn) {
    sums.add_quarters();
#pragma unroll
    for (int i = 0; i < I::kTiles; ++i) reduction.put(turn, at.tile + i, at.k_split, sums.y[i]);
  }

  __device__ __forceinline__ void store(int turn, int tile, int m, float sum) const {
    store_int4_output<typename I::Num::type>(p, at, turn, tile, m, sum);
  }
};

template <class I>
__device__ __forceinline__ void run(const Params& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  const Position at(p, I::kTiles);
  const Shared shared(p, at, smem, I::kSub, I::kStageBytes);
  const SplitKReduction<float> reduction(p, at, shared.partial, shared.barriers());
  Copies<I> copies(p, at, shared.ring);
  prefetch_rows(p, at, p.weight, first_row(at, copies.cursor.group), I::kTiles * kTileN, p.N, copies.row_bytes, kTileK / 2);
  wait_for_last_kernel();
  start_next_kernel();
  reduction.start();
  if (at.warp == 0 && at.lane == 0) store_shared_16(shared.zeros, uint4{0, 0, 0, 0});
  Kernel<I> kernel{p, at, shared, reduction, copies, Sums<I>(p, at, shared)};
  for_each_turn<I::kStageKTiles>(p, at, reduction, kernel);
}

template <Element X, Element S, int Sub, int Rows, bool Ringed, int Tiles>
__global__ void __launch_bounds__(kFewRowsThreads, 1) int4_ring_kernel(const __grid_constant__ Params p) {
  run<Instance<X, S, Sub, Rows, Ringed, Tiles>>(p);
}

}  // namespace aoext::cuda::int4_ring
