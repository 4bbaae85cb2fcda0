// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for few rows of x: weight-only int4, limited by reading q.
// The plan takes this or int4_ring.cuh, whichever is faster; what this does not serve is left to that one.
//
// Memory. A k-tile of 16 output channels by 128 k is 1 KB of nibbles, for one warp, two 16-byte loads a lane. Lane (g = lane / 4,
// t = lane % 4) holds bytes 16t..16t+15 of output channels 2g and 2g + 1, which are rows g and g + 8 of mma's A operand, so that
// the scales of its two rows are neighbours in memory. A warp takes one or two such tiles and a k-split of their k-tiles; it
// multiplies one stage, in registers (one or two k-tiles of each tile, 2 to 4 KB), while the next is in flight: 16 to 20 warps
// have 32 to 64 KB in flight. x lies in shared memory in the order in which mma reads it. The warps' partial sums, and those of
// the blocks of a cluster, which share K as well, are added by few_rows.cuh. The order is fixed: mma, groups, warps, cluster.
//
// Operands: the subnormal trick, nibbles to bf16 in five operations for eight. u = q + 8 in the low bits of a bf16 is the
// subnormal number u 2^-133, and four bits higher 16 u 2^-133 (the spacing of subnormal numbers continues through the first
// binade); the tensor cores take both exactly and at full rate. So `w & 0x000f000f ^ 0x00080008` is an operand, likewise
// 0x00f000f0, and both again for w >> 8. x is scaled up by a power of two per (m, 128 k), odd k by 1/16 of that, both exact: X' =
// 2^e x, and y += s 2^-e (sum u X') + (z - 8s) sum x. fp16 takes q itself, which is a subtraction more: its subnormal numbers
// would cost ten of the bits to which the tensor cores align.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/element.h"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/int4_decode_ops.cuh"

namespace aoext::cuda::int4_decode {

constexpr int kTileK = 128;  // k of a k-tile
constexpr int kTileN = 16;   // output channels of a tile

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
  int tile_groups;       // ceil(N / output channels of a block)
  int k_tiles;           // ceil(K / 128)
  int split_k_tiles;     // of the k-split of a block in its cluster
  int chunk_k_tiles;     // k-tiles whose x is in shared memory at a time
  int chunks;            // of a k-split
  int warp_stages;       // of a warp in a chunk
  int buffer_stride;     // words to the second buffer of partial sums, 0 where a block has one group of tiles
  int cluster_log2;
  int bias_type;     // Element
  int scale_groups;  // K / group_size
};

template <Element S, int Sub, int Tiles, int KTiles>
struct Stage {
  static constexpr int kScales = (KTiles * (kTileK / Sub) * Tiles + 3) / 4;
  uint4 w[KTiles][2 * Tiles];                  // of output channels 2g and 2g + 1 of each tile
  ScalePair<S> scale[kScales], zero[kScales];  // lane t: items t, t + 4, … of (group, tile)
};

// X: type of x and y. S: type of scales. Sub: k that share a scale, 128 / Sub groups a k-tile. Rows: of x at most. Tiles: of a
// warp. KTiles: of a stage. Threads: of a block at most.
template <Element X, Element S, int Sub, int Rows, int Tiles, int KTiles, int Threads>
__global__ void __launch_bounds__(Threads, 1) int4_decode_kernel(const __grid_constant__ Params p) {
  using Num = Number<X>;
  using RegisterStage = Stage<S, Sub, Tiles, KTiles>;
  constexpr int kSubs = kTileK / Sub, kOctets = (Rows + 7) / 8;
  constexpr int kKTileX = Rows * 256, kKTileSums = kSubs * Rows * 8;
  extern __shared__ __align__(16) uint8_t smem[];
  const int lane = threadIdx.x, slice = threadIdx.y, tile = threadIdx.z * Tiles, g = lane >> 2, t = lane & 3;
  const int slices = blockDim.y, tiles = blockDim.z * Tiles, warps = blockDim.y * blockDim.z, warp = threadIdx.z * slices + slice;
  const int rank = blockIdx.x, cluster = gridDim.x;
  const int split_begin = rank * p.split_k_tiles, split_end = min(split_begin + p.split_k_tiles, p.k_tiles);
  const int stride = slices * KTiles;  // k-tiles between a warp's stages

  // Shared memory: two barriers, X' [k-tile of the chunk][word][m][t] of 16 B, {2^-e, sum x} [k-tile of the chunk][group][m],
  // partial sums, and those from the cluster.
  const uint32_t barriers = shared_address(smem);
  const uint32_t xs = barriers + 16;
  const uint32_t sums = xs + p.chunk_k_tiles * kKTileX;
  const SplitKReduction<float> reduction{reinterpret_cast<float*>(smem + (sums - barriers) + p.chunk_k_tiles * kKTileSums),
                                         barriers,
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

  // -- Weights: a cursor that runs a stage ahead. Past an end the last weights are read again, and multiplied by zeros in X'.
  const int row_bytes = static_cast<int>(p.K / 2);
  const uint32_t scale_row_bytes = static_cast<uint32_t>(p.N) * ScalePair<S>::kBytes;
  struct {
    int group, chunk, step, k_tile, end;
    const uint8_t *weight, *scale, *zero;
    uint32_t row[2 * Tiles];  // bytes from weight to the lane's rows
    int tile_scale;           // elements from scale to that of the next tile
    int left;                 // output channels from this lane's first one to the last
  } at;
  const auto aim = [&](int group) {
    const int first = (group * tiles + tile) * kTileN + 2 * g, last = static_cast<int>(p.N) - 1;
    const int row = min(first, last) & ~1;
    at.left = last - row;
    at.weight = p.weight + static_cast<int64_t>(row) * row_bytes;
#pragma unroll
    for (int i = 0; i < 2 * Tiles; ++i) at.row[i] = min(i / 2 * kTileN + i % 2, at.left) * row_bytes;
    at.tile_scale = min(kTileN, at.left) & ~1;
    at.scale = static_cast<const uint8_t*>(p.scale) + static_cast<int64_t>(row) * ScalePair<S>::kBytes;
    at.zero = static_cast<const uint8_t*>(p.zero_point) + static_cast<int64_t>(row) * ScalePair<S>::kBytes;
  };
  const auto aim_chunk = [&](int chunk) {
    const int begin = split_begin + chunk * p.chunk_k_tiles;
    at.k_tile = begin + slice * KTiles;
    at.end = min(begin + p.chunk_k_tiles, split_end);
  };
  const auto fetch = [&](RegisterStage& stage) {
    if (at.group < p.tile_groups && at.k_tile < at.end) {
#pragma unroll
      for (int u = 0; u < KTiles; ++u) {
        const uint8_t* from = at.weight + min((at.k_tile + u) * (kTileK / 2) + t * 16, row_bytes - 16);
#pragma unroll
        for (int i = 0; i < 2 * Tiles; ++i) stage.w[u][i] = load_stream(from + at.row[i]);
      }
#pragma unroll
      for (int i = 0; i < RegisterStage::kScales; ++i) {
        const int item = min(i * 4 + t, KTiles * kSubs * Tiles - 1), in_tile = item % Tiles, sub = item / Tiles;
        const uint32_t group =
            min(divide(at.k_tile * kSubs + sub, p.sub_per_group, p.group_magic), static_cast<uint32_t>(p.scale_groups - 1));
        const int skip = in_tile ? at.tile_scale : 0;
        const uint64_t offset = static_cast<uint64_t>(group) * scale_row_bytes + skip * ScalePair<S>::kBytes;
        stage.scale[i].load(at.scale + offset);
        stage.zero[i].load(at.zero + offset);
      }
    }
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

  // Prefetches the first stage while the last kernel ends.
  const auto ask = [&] {
    if (at.group >= p.tile_groups || at.k_tile >= at.end) return;
#pragma unroll
    for (int u = 0; u < KTiles; ++u)
#pragma unroll
      for (int i = 0; i < 2 * Tiles; ++i)
        if (t % 2 == 0) prefetch_line(at.weight + min((at.k_tile + u) * (kTileK / 2) + t * 16, row_bytes - 16) + at.row[i]);
  };

  // -- x: a chunk of k-tiles to shared memory. The four lanes of a group g take one (k-tile, m) at a time: they copy it to where
  // X' will be, and once it is there (each lane reads what it copied) make X' of it in place. The wait for these copies does not
  // wait for weights in flight.
  const auto each_x = [&](int begin, int end, auto&& body) {
    const int count = (end - begin + KTiles - 1) / KTiles * KTiles * p.M;
    for (int i = warp * 8; i < count; i += warps * 8) {
      const int item = min(i + g, count - 1), k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
      body(k_tile, m, xs + k_tile * kKTileX + m * 64 + t * 16, i + g < count);
    }
  };
  const auto copy_x = [&](int begin, int end) {
    each_x(begin, end, [&](int k_tile, int m, uint32_t to, bool mine) {
      const int k0 = (begin + k_tile) * kTileK;
      const auto* from = static_cast<const uint16_t*>(p.x) + (m * p.K + k0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = word_k<Sub>(t, j);
        if (mine) copy16_cached(to + j * Rows * 64, from + k, k0 + k < static_cast<int>(p.K));
      }
    });
  };
  const auto stage_x = [&](int k_tile, int m, uint32_t to, bool mine) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = mine ? load_shared_16(to + j * Rows * 64) : uint4{0, 0, 0, 0};
    const int exponent = top_exponent<Num>(v);
    const bool finite = exponent != 2 * Num::kExponentBias + 1;
    // (an |x| of 2^121 or more, whose 2^-e no float holds, counts as infinite)
    const int shift = Num::kNormal ? 0 : min(Num::kTop + Num::kExponentBias - max(exponent, 1), Num::kMaxShift);
    const uint32_t even = power_pair<Num>(shift), odd = power_pair<Num>(shift - 4);
    float sum[kSubs][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 b = arranged<Num>(v[j], even, odd, sum[j * kSubs / 4]);
      if (mine) store_shared_16(to + j * Rows * 64, b);
    }
    if (t == g >> 1 && mine) {  // this lane's C holds column g
      const float back = finite ? (Num::kNormal ? 1.f : pow2(min(-Num::kUlp - shift, 128))) : __int_as_float(0x7fffffff);
#pragma unroll
      for (int s = 0; s < kSubs; ++s) {
        const float total = (g & 1 ? sum[s][1] : sum[s][0]) * pow2(-Num::kOne - shift);
        store_shared(sums + k_tile * kKTileSums + (s * Rows + m) * 8, back, total);
      }
    }
  };

  // -- y: this warp's output channels
  float y[Tiles][kOctets][4];
  uint32_t column[kOctets], column_sum[kOctets];  // addresses of this lane's row of x: as a column of B, and as two columns of C
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    column[o] = xs + min(o * 8 + g, p.M - 1) * 64 + t * 16;
    column_sum[o] = sums + min(o * 8 + 2 * t, (p.M - 1) & ~1) * 8;
  }

  const auto compute = [&](const RegisterStage& stage, int first) {  // first: k-tile of the chunk
#pragma unroll
    for (int u = 0; u < KTiles; ++u) {
      uint32_t w[Tiles][2][4];
#pragma unroll
      for (int i = 0; i < 2 * Tiles; ++i) {
        uint4 v = stage.w[u][i];
        spread<Sub>(v, t);
        w[i / 2][i % 2][0] = v.x, w[i / 2][i % 2][1] = v.y, w[i / 2][i % 2][2] = v.z, w[i / 2][i % 2][3] = v.w;
      }
#pragma unroll
      for (int s = 0; s < kSubs; ++s) {
        float acc[Tiles][kOctets][4] = {};
#pragma unroll
        for (int j = s * 4 / kSubs; j < (s + 1) * 4 / kSubs; ++j) {
          uint4 b[kOctets];
#pragma unroll
          for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column[o] + (first + u) * kKTileX + j * Rows * 64);
#pragma unroll
          for (int i = 0; i < Tiles; ++i) {
            uint32_t even[4], odd[4];
            operands<Num>(w[i][0][j], w[i][1][j], even, odd);
#pragma unroll
            for (int o = 0; o < kOctets; ++o) mma<typename Num::type>(acc[i][o], even, b[o].x, b[o].y);
#pragma unroll
            for (int o = 0; o < kOctets; ++o) mma<typename Num::type>(acc[i][o], odd, b[o].z, b[o].w);
          }
        }
        uint4 b[kOctets];  // 2^-e, sum x of m, then of m + 1
#pragma unroll
        for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(column_sum[o] + (first + u) * kKTileSums + s * Rows * 8);
#pragma unroll
        for (int i = 0; i < Tiles; ++i) {
          const int item = (u * kSubs + s) * Tiles + i, source = (lane & ~3) | (item & 3);
          const bool one = KTiles * kSubs * Tiles == 1;
          const float2 a = one ? stage.scale[0].get() : stage.scale[item / 4].from(source).get();
          float2 z = one ? stage.zero[0].get() : stage.zero[item / 4].from(source).get();
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
  ask();
  wait_for_last_kernel();
  start_next_kernel();
  RegisterStage next = {};
  fetch(next);
  copy_x(split_begin, min(split_begin + p.chunk_k_tiles, split_end));
  reduction.start();
  int turn = 0;
  for (int group = blockIdx.y; group < p.tile_groups; group += gridDim.y, ++turn) {
#pragma unroll
    for (int i = 0; i < Tiles * kOctets * 4; ++i) y[i / (kOctets * 4)][i / 4 % kOctets][i % 4] = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const int begin = split_begin + chunk * p.chunk_k_tiles, end = min(begin + p.chunk_k_tiles, split_end);
      if (turn == 0 || p.chunks > 1) {
        if (chunk + turn > 0) {
          __syncthreads();
          copy_x(begin, end);
        }
        wait_all_copies();
        each_x(begin, end, stage_x);
        __syncthreads();
      }
#pragma unroll 1
      for (int k_tile = slice * KTiles, i = 0; i < p.warp_stages; ++i, k_tile += stride) {
        const RegisterStage now = next;  // waits for it, and only then are more loads in flight
        fetch(next);
        if (begin + k_tile < end) compute(now, k_tile);
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles; ++i) reduction.put(turn, tile + i, slice, y[i]);
    reduction.reduce(turn, store);
  }
  reduction.end(turn, store);
}

}  // namespace aoext::cuda::int4_decode
