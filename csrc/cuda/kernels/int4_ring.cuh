// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for few rows of x: weight-only int4, limited by reading q.
//
// Memory. A k-tile of 16 output channels by 128 k is 1 KB of nibbles. A warp takes one or two tiles of 16 output channels and a
// k-split of their k-tiles, through a ring of stages of its own in shared memory: a stage is 2 KB, two k-tiles of one tile or one
// k-tile of two, with their scales and zero points. Two stages are always in flight, 64 KB a multiprocessor, or three of few
// warps; no warp waits for another one. Lane (g = lane / 4, t = lane % 4) copies bytes 16t..16t+15 of output channels 2g and
// 2g + 1 of a k-tile, which are rows g and g + 8 of mma's A operand, so that the scales of its two rows are neighbours. x lies in
// shared memory in the order in which mma reads it. The warps' partial sums, and those of the blocks of a cluster, which share K
// as well, are added by few_rows.cuh. The order is fixed: mma, groups, warps, cluster.
//
// Operands are those of int4_decode.cuh; here a group's sum of u X' begins at -8 sum X', and 2^-e scales a k-tile's sums at once.
//
// Groups of fewer than 128 k. mma sums over the four lanes t, so each word of a lane comes from another quarter of a k-tile. For
// one or two rows of x, which leave six columns of mma free, every lane keeps a quarter to itself instead: column (quarter, m) is
// zero but in the lanes of that quarter, lane t gets the sums of quarter t, and the quarters are added at the very end. So these
// groups cost no more operations than groups of 128.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/element.h"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/int4_decode_ops.cuh"

namespace aoext::cuda::int4_ring {

using int4_decode::arranged;
using int4_decode::divide;
using int4_decode::lane_sum;
using int4_decode::Number;
using int4_decode::operands;
using int4_decode::pow2;
using int4_decode::power_pair;
using int4_decode::ScalePair;
using int4_decode::top_exponent;
using int4_decode::word_k;

constexpr int kTileK = 128;  // k of a k-tile
constexpr int kTileN = 16;   // output channels of a tile
constexpr int kKTileBytes = kTileN * 64;
constexpr int kStageTiles = 2;  // of a step, in tiles times k
constexpr int kThreads = 512;   // that a block may have, of 128 registers

// What a launch needs; every division in the kernel is by one of these, or a multiplication by its magic number.
struct Params {
  int64_t K, N;
  const void* x;
  const uint8_t* weight;
  const void *scale, *zero_point, *bias;
  const float* row_scale;
  void* y;
  int M;
  uint32_t m_magic;      // ceil(2^20 / M)
  int sub_per_group;     // group_size / Sub
  uint32_t group_magic;  // ceil(2^32 / sub_per_group), unused if that is 1
  int scale_groups;      // K / group_size
  int scale_bytes;       // that are copied at once: 16 or 4
  int tile_groups;       // ceil(N / output channels of a block)
  int k_tiles;           // ceil(K / 128)
  int split_k_tiles;     // of the k-split of a block in its cluster
  int chunk_k_tiles;     // k-tiles whose x is in shared memory at a time
  int chunks;            // of a k-split
  int warp_stages;       // of a warp in a chunk
  int depth;             // stages of a ring: 2 or 3
  int ahead;             // bytes of each output channel that are prefetched into L2 while the last kernel ends
  int buffer_stride;     // words to the second buffer of partial sums, 0 where a block has one group of tiles
  int cluster_log2;
  int bias_type;  // Element
};

// Of a stage: weights, and scales and zero points where those come through the ring.
__host__ __device__ constexpr int stage_bytes(bool scales, int sub, int scale_bytes) {
  return kStageTiles * (kKTileBytes + (scales ? kTileK / sub * 2 * kTileN * scale_bytes : 0));
}
// Of a k-tile of x in shared memory: X', the sums of its groups, 2^-e; for an even number of rows.
__host__ __device__ constexpr int k_tile_x_bytes(int M) { return M * kTileK * 2; }
__host__ __device__ constexpr int k_tile_sum_bytes(int M, int sub) { return (M + 1) / 2 * 2 * (kTileK / sub) * 8; }
__host__ __device__ constexpr int k_tile_back_bytes(int M) { return (M + 1) / 2 * 2 * 4; }
constexpr int kFixedBytes = 32;  // 16 zeros, two barriers

// X: type of x and y. S: type of scales. Sub: k that share a scale, 128 / Sub groups a k-tile. Rows: of x, 8 or 16 at most; 2
// where a lane keeps a quarter to itself. Ringed: scales come through the ring; otherwise they are not aligned for that, and are
// read from global memory as they are used. Tiles: of a warp.
template <Element X, Element S, int Sub, int Rows, bool Ringed, int Tiles>
__global__ void __launch_bounds__(kThreads, 1) int4_ring_kernel(const __grid_constant__ Params p) {
  using Num = Number<X>;
  using Pair = ScalePair<S>;
  constexpr bool kQuarters = Rows == 2;
  static_assert(!kQuarters || Sub == 32);
  constexpr bool kSpread = Sub < kTileK && !kQuarters;  // words of a sub over the four lanes
  constexpr int kSubs = kTileK / Sub, kLaneSubs = kQuarters ? 1 : kSubs, kOctets = (Rows + 7) / 8,
                kStageKTiles = kStageTiles / Tiles;
  constexpr int kHalf = kTileN * Pair::kBytes;  // scales of a tile and sub, or their zero points
  constexpr int kWeightBytes = kStageTiles * kKTileBytes;
  constexpr int kStageBytes = stage_bytes(Ringed, Sub, Pair::kBytes);
  // Independent accumulators, so that one mma does not wait for another.
  constexpr int kChains = Tiles == 1 && kOctets == 1 && kLaneSubs == 1 ? 2 : 1;
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x, slice = threadIdx.y, tile = threadIdx.z * Tiles, g = lane >> 2, t = lane & 3;
  const int slices = blockDim.y, tiles = blockDim.z * Tiles, warps = blockDim.y * blockDim.z, warp = threadIdx.z * slices + slice;
  const int rank = blockIdx.x, cluster = gridDim.x;
  const int split_begin = rank * p.split_k_tiles, split_end = min(split_begin + p.split_k_tiles, p.k_tiles);
  const int stride = slices * kStageKTiles;  // k-tiles between a warp's stages

  // Shared memory: X' [k-tile of the chunk][word][m][t] of 16 B, the warps' rings, zeros, two barriers, {-8 sum X', sum x}
  // [k-tile of the chunk][group][m], 2^-e [k-tile of the chunk][m], partial sums.
  const uint32_t xs = shared_address(smem);
  const uint32_t ring = xs + p.chunk_k_tiles * k_tile_x_bytes(p.M) + warp * p.depth * kStageBytes;
  uint8_t* const beyond = smem + p.chunk_k_tiles * k_tile_x_bytes(p.M) + warps * p.depth * kStageBytes;
  const uint32_t zeros = shared_address(beyond), sums = zeros + kFixedBytes;
  const uint32_t backs = sums + p.chunk_k_tiles * k_tile_sum_bytes(p.M, Sub);
  const SplitKReduction<float> reduction{
      reinterpret_cast<float*>(beyond + (backs - zeros) + p.chunk_k_tiles * k_tile_back_bytes(p.M)),
      zeros + 16,
      p.M,
      p.m_magic,
      tiles,
      slices,
      p.buffer_stride,
      rank,
      cluster,
      p.cluster_log2,
      warp,
      warps,
      lane};

  // -- Weights: a cursor that runs a ring ahead of the sums. For output channels past the last, the last is read, and nothing
  // stored; k past K are zeros.
  const int row_bytes = static_cast<int>(p.K / 2);
  struct {
    int group, chunk, step, k_tile, end;
    const uint8_t* weight;
    uint32_t row[2 * Tiles];  // bytes from weight to the lane's rows
  } at;
  const auto first_row = [&](int group) { return (group * tiles + tile) * kTileN; };
  const auto aim = [&](int group) {
    const int last = static_cast<int>(p.N) - 1, row = min(first_row(group) + 2 * g, last);
    at.weight = p.weight + static_cast<int64_t>(row) * row_bytes + t * 16;
#pragma unroll
    for (int i = 0; i < 2 * Tiles; ++i) at.row[i] = min(i / 2 * kTileN + i % 2, last - row) * row_bytes;
  };
  const auto aim_chunk = [&](int chunk) {
    const int begin = split_begin + chunk * p.chunk_k_tiles;
    at.k_tile = begin + slice * kStageKTiles;
    at.end = min(begin + p.chunk_k_tiles, split_end);
  };
  const auto group_of = [&](int k_tile, int sub) { return divide(k_tile * kSubs + sub, p.sub_per_group, p.group_magic); };
  // [k-tile][group][tile][scale, zero point][output channel]
  const auto copy_scales = [&](uint32_t to, auto bytes) {
    constexpr int kBytes = decltype(bytes)::value, kPieces = kHalf / kBytes, kAll = kStageTiles * kSubs * 2 * kPieces;
#pragma unroll(kBytes == 16 ? 4 : 1)
    for (int i = 0; i < kAll; i += 32) {
      const int piece = i + lane, item = piece / (2 * kPieces), in_warp = item % Tiles;
      const int n = first_row(at.group) + in_warp * kTileN + piece % kPieces * (kBytes / Pair::kBytes);
      const int64_t group = group_of(at.k_tile, item / Tiles);
      const bool inside = n < p.N && group < p.scale_groups;
      const void* from = piece / kPieces % 2 ? p.zero_point : p.scale;
      if (inside) from = static_cast<const uint8_t*>(from) + (group * p.N + n) * Pair::kBytes;
      if (kAll % 32 == 0 || piece < kAll) copy<kBytes>(to + piece * kBytes, from, inside);
    }
  };
  // Where a lane's 16 bytes lie, so that word j of all lanes is read from different banks.
  const int swizzle = kSpread ? g >> 1 & 3 : 0;
  const auto fetch = [&](int slot) {
    if (at.group < p.tile_groups && at.k_tile < at.end) {
      const uint32_t to = ring + slot * kStageBytes, piece = to + g * 64 + (t ^ swizzle) * 16;
#pragma unroll
      for (int u = 0; u < kStageKTiles; ++u) {
        const int byte = (at.k_tile + u) * (kTileK / 2);
        const bool inside = byte + t * 16 < row_bytes;
        const uint8_t* from = at.weight + (inside ? byte : 0);
#pragma unroll
        for (int i = 0; i < 2 * Tiles; ++i) copy16(piece + (u * 2 * Tiles + i) * 512, from + at.row[i], inside);
      }
      if constexpr (Ringed) {
        if (p.scale_bytes == 16)
          copy_scales(to + kWeightBytes, std::integral_constant<int, 16>{});
        else
          copy_scales(to + kWeightBytes, std::integral_constant<int, 4>{});
      }
    }
    commit_copies();
    at.k_tile += stride;
    if (++at.step == p.warp_stages) {
      at.step = 0;
      if (++at.chunk == p.chunks) {
        at.chunk = 0, at.group += gridDim.y;
        aim(at.group);
      }
      aim_chunk(at.chunk);
    }
  };

  // -- x: a chunk of k-tiles to shared memory. The four lanes of a group g take one (k-tile, m).
  struct Item {
    int k_tile, m;
    bool mine;
  };
  const auto item_of = [&](int i, int count) {
    const int item = min(i + g, count - 1), k_tile = item * p.m_magic >> 20;
    return Item{k_tile, item - k_tile * p.M, i + g < count};
  };
  const auto load_x = [&](const Item& item, int begin, uint4(&v)[4]) {
    const int k0 = (begin + item.k_tile) * kTileK;
    const auto* from = static_cast<const uint16_t*>(p.x) + (item.m * p.K + k0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = word_k<kSpread ? Sub : kTileK>(t, j);
      v[j] = item.mine && k0 + k < static_cast<int>(p.K) ? *reinterpret_cast<const uint4*>(from + k) : uint4{0, 0, 0, 0};
    }
  };
  const auto stage_x = [&](const Item& item, const uint4(&v)[4]) {
    const int exponent = top_exponent<Num>(v);
    const bool finite = exponent != 2 * Num::kExponentBias + 1;
    // (an |x| of 2^121 or more, whose 2^-e no float holds, counts as infinite)
    const int shift = Num::kNormal ? 0 : min(Num::kTop + Num::kExponentBias - max(exponent, 1), Num::kMaxShift);
    const uint32_t even = power_pair<Num>(shift), odd = power_pair<Num>(shift - 4);
    const uint32_t to = xs + item.k_tile * k_tile_x_bytes(p.M) + item.m * 64 + t * 16;
    float sum[kLaneSubs][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 b = kQuarters ? arranged<Num>(v[j], even, odd) : arranged<Num>(v[j], even, odd, sum[j * kLaneSubs / 4]);
      if (item.mine) store_shared_16(to + j * p.M * 64, b);
      if constexpr (kQuarters) sum[0][0] += lane_sum<Num>(v[j]);
    }
    const uint32_t at = sums + item.k_tile * k_tile_sum_bytes(p.M, Sub) + item.m * 8;
    const auto store_sums = [&](int s, float scaled) {  // 2^kOne sum X'
      const float begin = Num::kNormal ? 0.f : -8 * pow2(Num::kUlp - Num::kOne) * scaled;
      store_shared(at + s * k_tile_sum_bytes(p.M, kTileK), begin, scaled * pow2(-Num::kOne - shift));
    };
    if (kQuarters && item.mine) store_sums(t, sum[0][0] * pow2(Num::kOne + shift));
    if (t == g >> 1 && item.mine) {  // this lane's C holds column g
#pragma unroll
      for (int s = 0; s < kLaneSubs && !kQuarters; ++s) store_sums(s, g & 1 ? sum[s][1] : sum[s][0]);
      const float back = finite ? (Num::kNormal ? 1.f : pow2(min(-Num::kUlp - shift, 128))) : __int_as_float(0x7fffffff);
      store_shared(backs + item.k_tile * k_tile_back_bytes(p.M) + item.m * 4, back);
    }
  };

  // -- y: this warp's output channels
  float y[Tiles][kOctets][4];
  uint32_t column[kOctets], pair[kOctets];  // this lane's row of x: address as a column of B, and as two columns of C
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    column[o] = xs + min(o * 8 + g, p.M - 1) * 64 + t * 16;
    pair[o] = kQuarters ? 0 : min(o * 8 + 2 * t, (p.M - 1) & ~1);
  }
  uint32_t x_stride = p.M * 64;
  if (kQuarters && (g >> 1 != t || (g & 1) >= p.M)) column[0] = zeros, x_stride = 0;
  if (kQuarters && g >> 1 == t && (g & 1) < p.M) column[0] = xs + (g & 1) * 64 + t * 16;

  // Scales and zero points of a stage that do not come through the ring.
  struct Loose {
    Pair scale[Ringed ? 1 : kStageKTiles * kLaneSubs * Tiles], zero[Ringed ? 1 : kStageKTiles * kLaneSubs * Tiles];
  };
  const auto read_loose = [&](Loose& loose, int group, int k_tile) {
#pragma unroll
    for (int i = 0; i < kStageKTiles * kLaneSubs * Tiles; ++i) {
      const int n = min(first_row(group) + i % Tiles * kTileN + 2 * g, static_cast<int>(p.N) - 1), us = i / Tiles;
      const int64_t row = min(group_of(k_tile, kQuarters ? us * kSubs + t : us), static_cast<uint32_t>(p.scale_groups - 1));
      loose.scale[i].read(p.scale, row * p.N + n, n + 1 < p.N);
      loose.zero[i].read(p.zero_point, row * p.N + n, n + 1 < p.N);
    }
  };

  const uint32_t piece_at = ring + g * 64 + (kSpread ? swizzle * 16 + t * 4 : t * 16);
  const uint32_t scale_at = ring + kWeightBytes + (kQuarters ? t * Tiles * 2 * kHalf : 0) + g * 2 * Pair::kBytes;
  const auto compute = [&](int slot, int first, const Loose& loose) {  // first: k-tile of the chunk
#pragma unroll
    for (int u = 0; u < kStageKTiles; ++u) {
      uint32_t w[2 * Tiles][4];
#pragma unroll
      for (int i = 0; i < 2 * Tiles; ++i) {
        const uint32_t from = piece_at + slot * kStageBytes;
        if constexpr (kSpread) {
#pragma unroll
          for (int j = 0; j < 4; ++j) w[i][j] = load_shared_word((from ^ j * 16) + (u * 2 * Tiles + i) * 512);
        } else {
          const uint4 v = load_shared_16(from + (u * 2 * Tiles + i) * 512);
          w[i][0] = v.x, w[i][1] = v.y, w[i][2] = v.z, w[i][3] = v.w;
        }
      }
      float part[Tiles][kOctets][4];
#pragma unroll
      for (int s = 0; s < kLaneSubs; ++s) {
        float acc[kChains][Tiles][kOctets][4] = {}, sum[kOctets][2];
#pragma unroll
        for (int o = 0; o < kOctets; ++o) {
          const uint4 b = load_shared_16(sums + (first + u) * k_tile_sum_bytes(p.M, Sub) + pair[o] * 8 +
                                         (kQuarters ? t * 16 : s * k_tile_sum_bytes(p.M, kTileK)));
          sum[o][0] = __uint_as_float(b.y), sum[o][1] = __uint_as_float(b.w);
#pragma unroll
          for (int i = 0; i < Tiles; ++i)
#pragma unroll
            for (int c = 0; c < 4 && !Num::kNormal; ++c) acc[0][i][o][c] = __uint_as_float(c % 2 ? b.z : b.x);
        }
#pragma unroll
        for (int j = s * 4 / kLaneSubs; j < (s + 1) * 4 / kLaneSubs; ++j) {
          uint4 b[kOctets];
#pragma unroll
          for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column[o] + ((first + u) * 4 + j) * x_stride);
#pragma unroll
          for (int i = 0; i < Tiles; ++i) {
            uint32_t even[4], odd[4];
            operands<Num>(w[2 * i][j], w[2 * i + 1][j], even, odd);
#pragma unroll
            for (int o = 0; o < kOctets; ++o) mma<typename Num::type>(acc[0][i][o], even, b[o].x, b[o].y);
#pragma unroll
            for (int o = 0; o < kOctets; ++o) mma<typename Num::type>(acc[kChains - 1][i][o], odd, b[o].z, b[o].w);
          }
        }
#pragma unroll
        for (int i = 0; i < Tiles; ++i) {
          const int item = (u * kLaneSubs + s) * Tiles + i;
          Pair scale = loose.scale[Ringed ? 0 : item], zero = loose.zero[Ringed ? 0 : item];
          if constexpr (Ringed) {
            const uint32_t from = scale_at + slot * kStageBytes + ((u * kSubs + s) * Tiles + i) * 2 * kHalf;
            scale.read_shared(from), zero.read_shared(from + kHalf);
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
        const float2 back = load_shared_pair(backs + (first + u) * k_tile_back_bytes(p.M) + pair[o] * 4);
#pragma unroll
        for (int i = 0; i < Tiles; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) y[i][o][c] = fmaf(c % 2 ? back.y : back.x, part[i][o][c], y[i][o][c]);
      }
    }
  };

  const auto store = [&](int turn, int in_block, int m, float sum) {
    const int64_t n = (static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * tiles + in_block) * kTileN + (lane & 15);
    if (n >= p.N) return;
    if (p.row_scale) sum *= p.row_scale[m];
    if (p.bias) sum += load_float(p.bias, n, static_cast<Element>(p.bias_type));
    static_cast<typename Num::type*>(p.y)[m * p.N + n] = static_cast<typename Num::type>(sum);
  };

  // -- The loop
  at.group = blockIdx.y, at.chunk = 0, at.step = 0;
  aim(at.group);
  aim_chunk(0);
  if (p.ahead) {
    const int64_t row = first_row(at.group) + lane;
    const int from = split_begin * (kTileK / 2), bytes = min(min(split_end * (kTileK / 2), row_bytes) - from, p.ahead);
    if (slice == 0 && lane < Tiles * kTileN && row < p.N && bytes > 0) prefetch_bulk(p.weight + row * row_bytes + from, bytes);
  }
  wait_for_last_kernel();
  start_next_kernel();
  reduction.start();
  if (warp == 0 && lane == 0) store_shared_16(zeros, uint4{0, 0, 0, 0});
  int turn = 0, slot = 0, fetched = 0;
  for (int group = blockIdx.y; group < p.tile_groups; group += gridDim.y, ++turn) {
#pragma unroll
    for (int i = 0; i < Tiles * kOctets * 4; ++i) y[i / (kOctets * 4)][i / 4 % kOctets][i % 4] = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const int begin = split_begin + chunk * p.chunk_k_tiles, end = min(begin + p.chunk_k_tiles, split_end);
      if (turn == 0 || p.chunks > 1) {
        if (chunk + turn > 0) __syncthreads();
        const int count = (end - begin + kStageKTiles - 1) / kStageKTiles * kStageKTiles * p.M;
        int i = warp * 8;
        do {
          uint4 v[4];
          const Item one = item_of(i, count);
          load_x(one, begin, v);
#pragma unroll 1
          for (; fetched < p.depth; ++fetched) fetch(fetched);
          if (i < count) stage_x(one, v);
          i += warps * 8;
        } while (i < count);
        __syncthreads();
      }
#pragma unroll 1
      for (int k_tile = slice * kStageKTiles, i = 0; i < p.warp_stages; ++i, k_tile += stride) {
        Loose loose;
        if (!Ringed && begin + k_tile < end) read_loose(loose, group, begin + k_tile);
        if (p.depth == 2)
          wait_copies<1>();
        else
          wait_copies<2>();
        __syncwarp();
        if (begin + k_tile < end) compute(slot, k_tile, loose);
        __syncwarp();
        fetch(slot);
        slot = slot + 1 == p.depth ? 0 : slot + 1;
      }
    }
    if constexpr (kQuarters) {
#pragma unroll
      for (int i = 0; i < Tiles * 4; ++i) {
        float& sum = y[i / 4][0][i % 4];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles; ++i) reduction.put(turn, tile + i, slice, y[i]);
    reduction.reduce(turn, store);
  }
  reduction.end(turn, store);
}

}  // namespace aoext::cuda::int4_ring
