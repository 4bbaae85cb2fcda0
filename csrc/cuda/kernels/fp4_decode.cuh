// Codes of 4 bits with a power of two for 32 k or an e4m3 for 16 (mxfp4, nvfp4), for few rows of x in bf16, limited by reading
// the codes.
//
// Memory is rowwise_decode.cuh's: a k-tile of 16 output channels by 256 k is 2 KB of codes and up to 256 bytes of scales, for one
// warp, which takes a tile of output channels and a k-split through a ring of stages of its own. Lane (g = lane / 4, t = lane %
// 4) holds, of output channels 2g and 2g + 1, 32 neighbouring k of each half of a k-tile: one power, or two e4m3.
//
// What limits it beside memory is integer operations: a quarter of a multiprocessor has 6.4 cycles for two codes while it reads
// at full speed, and such an operation takes two. A table in shared memory (blocks_decode.cuh) would cost a read for every two
// codes, and shared memory is as busy as memory then. So the table of e2m1 is recognised, by the kernel, as it lies on the GPU.
// Its codes have the sign, exponent and mantissa of a bf16, closer together: an AND, a multiplication, which is no integer
// operation of those, and an AND make a pair of them, 2^-126 times as large as they are. The multiplication by the scale makes up
// for that. Nibbles j and j + 4 of a word are a pair, and x is brought into this order in shared memory, once.
//
// Any other table is looked up by permutations of registers (table16.cuh), at half the pace.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda::fp4_decode {

using rowwise_decode::kRowBytes;
using rowwise_decode::kThreads;
using rowwise_decode::kTileN;
using rowwise_decode::kWeightBytes;

constexpr int kTileK = 256;        // k of a k-tile
constexpr int kHalfX = kTileK;     // bytes of x in half a k-tile
constexpr int kRowX = 2 * kHalfX;  // and in a k-tile
// A block has kThreads at most; fewer registers leave room for blocks beside it (choose_cut).
template <int Octets>
constexpr int kMostThreads = Octets == 1 ? 640 : kThreads;
constexpr float kSmall = 0x1p126f;  // times as small as they are: e2m1 as bf16
constexpr uint32_t kSmallPair = 0x7e807e80;

// A BlockLinear whose scales are [N, K / kGroup].
struct Fp4Linear : BlockLinear {};

// Bytes of a stage: codes, and scales of 16 output channels.
__host__ __device__ constexpr int stage_bytes(int group) { return kWeightBytes + kTileN * (kTileK / group); }

__device__ __forceinline__ uint32_t product(uint32_t a, uint32_t b) {
  return bits<uint32_t>(__hmul2(bits<__nv_bfloat162>(a), bits<__nv_bfloat162>(b)));
}

// Eight codes of e2m1, nibbles j and j + 4 in pair j: sign, exponent and mantissa go where bf16 has them.
__device__ __forceinline__ void e2m1_pairs(uint32_t word, uint32_t (&pair)[4]) {
  const uint32_t next = word >> 8;
  pair[0] = (word & 0x000f000fu) * 0x1040u & 0x81c081c0u;
  pair[1] = (word & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
  pair[2] = (next & 0x000f000fu) * 0x1040u & 0x81c081c0u;
  pair[3] = (next & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
}

// Whether a warp's table is e2m1's.
__device__ __forceinline__ bool is_e2m1(const float* table, int lane) {
  const uint32_t code = lane & 15;
  const float value = __uint_as_float((code & 8) << 28 | (code & 7) << 22) * kSmall;
  return __all_sync(~0u, table[code] == value);
}

// Scales as pairs of bf16, of both rows of a lane and half; kE2m1: times what makes up for small codes, and kBack less.
struct Exponents {
  static constexpr int kGroup = 32;
  static constexpr float kBack = 1;

  struct OfHalf {
    uint32_t pair[2][1];
    bool wide;  // a power is too large for kSmall to be multiplied into it: codes are multiplied twice
  };

  // e8m0 as bf16: 0 is a subnormal number, 255 is NaN.
  static __device__ __forceinline__ uint32_t plain(uint32_t e) {
    return e == 255 ? 0x7fff7fffu : e == 0 ? 0x00400040u : e * 0x00800080u;
  }

  template <bool kE2m1>
  static __device__ __forceinline__ OfHalf read(uint32_t row, int h, int t) {
    constexpr uint32_t kLargest = 254 - 126;  // that kSmall leaves finite
    uint32_t e[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(e[r]) : "r"(row + r * 8 + h * 4 + t) : "memory");
    OfHalf all;
    all.wide = kE2m1 && __any_sync(~0u, max(e[0], e[1]) > kLargest);
#pragma unroll
    for (int r = 0; r < 2; ++r) all.pair[r][0] = kE2m1 && !all.wide ? e[r] * 0x00800080u + 0x3f003f00u : plain(e[r]);
    return all;
  }
};

struct E4m3 {
  static constexpr int kGroup = 16;
  static constexpr float kBack = 0x1p8f;

  struct OfHalf {
    uint32_t pair[2][2];
    static constexpr bool wide = false;
  };

  template <bool kE2m1>
  static __device__ __forceinline__ OfHalf read(uint32_t row, int h, int t) {
    constexpr float kFactor = kE2m1 ? kSmall / kBack : 1.0f;
    OfHalf all;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint16_t two;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(two) : "r"(row + r * 16 + h * 8 + t * 2) : "memory");
      const float2 v = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(two, 0)));
      const uint32_t first = __float_as_uint(v.x * kFactor), second = __float_as_uint(v.y * kFactor);
      all.pair[r][0] = __byte_perm(first, first, 0x3232), all.pair[r][1] = __byte_perm(second, second, 0x3232);
    }
    return all;
  }
};

template <class Scales, int Octets, int Depth>
__global__ void __launch_bounds__(kMostThreads<Octets>, 1)
    fp4_decode_kernel(const __grid_constant__ rowwise_decode::Params<Fp4Linear> p) {
  constexpr int kStage = stage_bytes(Scales::kGroup), kScaleRow = kTileK / Scales::kGroup;
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x, slice = threadIdx.y, tile = threadIdx.z, g = lane >> 2, t = lane & 3;
  const int slices = blockDim.y, tiles = blockDim.z, warps = slices * tiles, warp = tile * slices + slice;
  const int rank = blockIdx.x, cluster = gridDim.x;
  const int split_begin = rank * p.split_k_tiles, split_end = min(split_begin + p.split_k_tiles, p.k_tiles);
  const Fp4Linear& linear = p.linear;
  const int K = static_cast<int>(linear.K), row_bytes = K / 2, scale_row_bytes = K / Scales::kGroup;

  // Shared memory: x [k-tile of the chunk][m], the warps' rings, two barriers, two tables of a group's channels, partial sums.
  const uint32_t xs = shared_address(smem);
  const uint32_t ring = xs + p.chunk_k_tiles * p.M * kRowX + warp * Depth * kStage;
  uint8_t* const beyond = smem + p.chunk_k_tiles * p.M * kRowX + warps * Depth * kStage;
  Channel* const channels = reinterpret_cast<Channel*>(beyond + 16);
  const int table = tiles * kTileN;  // channels of a group, fewer than threads
  const SplitKReduction<float> reduction{reinterpret_cast<float*>(channels + 2 * table),
                                         shared_address(beyond),
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

  // -- Codes and scales: a cursor that runs a ring ahead of the sums. For output channels past the last, the last is read, and
  // nothing stored; k past K are zeros. Lane t copies half t % 2 of the scales of output channel 2g + t / 2.
  struct {
    int group, chunk, step, k_tile, end;
    const uint8_t *weight, *scale;
    uint32_t to_next;  // bytes to its row 2g + 1
  } at;
  const auto aim = [&](int group) {
    const int last = static_cast<int>(linear.N) - 1, row = min((group * tiles + tile) * kTileN + 2 * g, last);
    at.weight = static_cast<const uint8_t*>(linear.weight) + row * (linear.K / 2) + t * 16;
    at.to_next = row < last ? row_bytes : 0;
    at.scale = static_cast<const uint8_t*>(linear.block_scale) + min(row + t / 2, last) * (linear.K / Scales::kGroup) +
               t % 2 * (kScaleRow / 2);
  };
  const auto aim_chunk = [&](int chunk) {
    const int begin = split_begin + chunk * p.chunk_k_tiles;
    at.k_tile = begin + slice;
    at.end = min(begin + p.chunk_k_tiles, split_end);
  };
  const auto fetch = [&](int slot) {
    if (at.group < p.tile_groups && at.k_tile < at.end) {
      const uint32_t to = ring + slot * kStage;
      const int byte = at.k_tile * kRowBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = byte + h * 64 + t * 16 < row_bytes;
        const uint8_t* from = at.weight + (inside ? byte + h * 64 : 0);
        copy16(to + lane * 16 + h * 1024, from, inside);
        copy16(to + lane * 16 + h * 1024 + 512, from + at.to_next, inside);
      }
      const int of_scales = at.k_tile * kScaleRow;
      const bool inside = of_scales + t % 2 * (kScaleRow / 2) < scale_row_bytes;
      copy<kScaleRow / 2>(to + kWeightBytes + lane * (kScaleRow / 2), at.scale + (inside ? of_scales : 0), inside);
    }
    commit_copies();
    at.k_tile += slices;
    if (++at.step == p.warp_stages) {
      at.step = 0;
      if (++at.chunk == p.chunks) {
        at.chunk = 0, at.group += gridDim.y;
        aim(at.group);
      }
      aim_chunk(at.chunk);
    }
  };

  // -- x: a chunk of k-tiles to shared memory. Four lanes take one (k-tile, m) at a time, 16 bytes each, which lie so that the
  // lanes of neighbouring rows read all banks. body(where a piece of 16 bytes lies, where it comes from, whether it is inside).
  const auto place = [&](int m, int piece) { return (piece ^ (m & 1) * 2 ^ (piece >> 3 & 1)) * 16; };
  const auto for_each_piece = [&](int begin, int end, auto&& body) {
    const int count = (end - begin) * p.M;
#pragma unroll 1
    for (int item = warp * 8 + g; item < count; item += warps * 8) {
      const int k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
      const auto* from = static_cast<const uint8_t*>(linear.x) + (m * linear.K + (begin + k_tile) * kTileK) * 2;
#pragma unroll
      for (int i = 0; i < kRowX / 64; ++i) {
        const int piece = i * 4 + t;
        const bool inside = (begin + k_tile) * kTileK + piece * 8 < K;
        body(xs + item * kRowX + place(m, piece), inside ? from + piece * 16 : from, inside);
      }
    }
  };
  const auto copy_x = [&](int begin, int end) { for_each_piece(begin, end, copy16_cached); };
  // What a lane copied itself into the order of pairs.
  const auto pair_x = [&](int begin, int end) {
    for_each_piece(begin, end, [](uint32_t at, const uint8_t*, bool) {
      const uint4 v = load_shared_16(at);
      store_shared_16(at, {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
                           __byte_perm(v.y, v.w, 0x7632)});
    });
  };

  // -- y: this warp's output channels
  float y[Octets][4];
  uint32_t column[Octets];  // this lane's row of x as a column of B
#pragma unroll
  for (int o = 0; o < Octets; ++o) {
    const int m = min(o * 8 + g, p.M - 1);
    column[o] = xs + m * kRowX + place(m, 4 * t);
  }
  // kE2m1: whether codes are e2m1's; otherwise they are looked up.
  const auto compute = [&]<bool kE2m1>(std::bool_constant<kE2m1>, const Table16& looked_up, int slot, int k_tile) {
    constexpr int kChains = Octets == 1 ? 2 : 1;  // so that one mma does not wait for another
    const uint32_t stage = ring + slot * kStage, x = k_tile * p.M * kRowX;
    float acc[kChains][Octets][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 codes[2] = {load_shared_16(stage + lane * 16 + h * 1024), load_shared_16(stage + lane * 16 + h * 1024 + 512)};
      const auto scales = Scales::template read<kE2m1>(stage + kWeightBytes + g * 2 * kScaleRow, h, t);
      const auto multiply = [&]<bool kWide>(std::bool_constant<kWide>) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint4 b[Octets];
#pragma unroll
          for (int o = 0; o < Octets; ++o) b[o] = load_shared_16(((column[o] + x) ^ j * 16) + h * kHalfX);
          uint32_t a[2][4];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const uint32_t word = j == 0 ? codes[r].x : j == 1 ? codes[r].y : j == 2 ? codes[r].z : codes[r].w;
            if constexpr (kE2m1)
              e2m1_pairs(word, a[r]);
            else
              looked_up.pairs(word, a[r]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if constexpr (kWide) a[r][i] = product(a[r][i], kSmallPair);
              a[r][i] = product(a[r][i], scales.pair[r][j * 8 / Scales::kGroup]);
            }
          }
#pragma unroll
          for (int o = 0; o < Octets; ++o) mma<__nv_bfloat16>(acc[0][o], {a[0][0], a[1][0], a[0][1], a[1][1]}, b[o].x, b[o].y);
#pragma unroll
          for (int o = 0; o < Octets; ++o)
            mma<__nv_bfloat16>(acc[kChains - 1][o], {a[0][2], a[1][2], a[0][3], a[1][3]}, b[o].z, b[o].w);
        }
      };
      if (scales.wide)
        multiply(std::true_type());
      else
        multiply(std::false_type());
    }
#pragma unroll
    for (int i = 0; i < Octets * 4; ++i)
      y[i / 4][i % 4] += kChains == 1 ? acc[0][i / 4][i % 4] : acc[0][i / 4][i % 4] + acc[kChains - 1][i / 4][i % 4];
  };

  // -- Outputs. A thread loads an output channel's bias as a turn begins, and stores it to shared memory as it ends.
  const int thread = warp * 32 + lane;
  float factor = 1;  // of all sums
  const auto store = [&](int turn, int in_block, int m, float sum) {
    const int in_group = in_block * kTileN + (lane & 15);
    const int64_t n = static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * table + in_group;
    if (n < linear.N) store_output(linear, m, n, sum, factor, channels[(turn & 1) * table + in_group]);
  };

  // -- The loop
  const auto run = [&]<bool kE2m1>(std::bool_constant<kE2m1> e2m1, const Table16& looked_up) {
    int turn = 0, slot = 0;
    for (int group = blockIdx.y; group < p.tile_groups; group += gridDim.y, ++turn) {
      RawChannel channel{};
      const int64_t n = static_cast<int64_t>(group) * table + thread;
      if (thread < table && n < linear.N) channel = fetch_channel(linear, n);
#pragma unroll
      for (int i = 0; i < Octets * 4; ++i) y[i / 4][i % 4] = 0;
      for (int chunk = 0; chunk < p.chunks; ++chunk) {
        const int begin = split_begin + chunk * p.chunk_k_tiles, end = min(begin + p.chunk_k_tiles, split_end);
        if (turn == 0 || p.chunks > 1) {
          if (chunk + turn > 0) {
            __syncthreads();
            copy_x(begin, end);
            wait_all_copies();
          } else {
            wait_copies<Depth>();
          }
          if constexpr (kE2m1) pair_x(begin, end);
          __syncthreads();
        }
#pragma unroll 1
        for (int k_tile = slice, i = 0; i < p.warp_stages; ++i, k_tile += slices) {
          wait_copies<Depth - 1>();
          __syncwarp();  // a lane reads scales that others copied
          if (begin + k_tile < end) compute(e2m1, looked_up, slot, k_tile);
          __syncwarp();
          fetch(slot);
          slot = slot + 1 == Depth ? 0 : slot + 1;
        }
      }
      if (thread < table) channels[(turn & 1) * table + thread] = channel_of(linear, channel);
      reduction.put(turn, tile, slice, y);
      reduction.reduce(turn, store);
    }
    reduction.end(turn, store);
  };

  at.group = blockIdx.y, at.chunk = 0, at.step = 0;
  aim(at.group);
  aim_chunk(0);
  if (p.ahead) {
    const int64_t row = static_cast<int64_t>(at.group * tiles + tile) * kTileN + lane;
    const int from = split_begin * kRowBytes, bytes = min(min(split_end * kRowBytes, row_bytes) - from, p.ahead);
    if (slice == 0 && lane < kTileN && row < linear.N && bytes > 0)
      prefetch_bulk(static_cast<const uint8_t*>(linear.weight) + row * (linear.K / 2) + from, bytes);
  }
  wait_for_last_kernel();
  start_next_kernel();
  copy_x(split_begin, min(split_begin + p.chunk_k_tiles, split_end));
  commit_copies();
#pragma unroll 1
  for (int d = 0; d < Depth; ++d) fetch(d);
  reduction.start();
  if (is_e2m1(linear.table, lane)) {
    factor = global_scale(linear) * Scales::kBack;
    run(std::true_type(), Table16());
  } else {
    const float of_table = table_factor<__nv_bfloat16>(linear.table);
    factor = global_scale(linear) / of_table;
    Table16 looked_up;
    looked_up.read<__nv_bfloat16>(linear.table, of_table);
    run(std::false_type(), looked_up);
  }
}

}  // namespace aoext::cuda::fp4_decode
