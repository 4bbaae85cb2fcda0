// Products with 8-bit weights (rowwise.h), and with a scale a block of weights of 8 or 4 bits (blocks.h), for few rows of x,
// limited by reading the weight.
//
// Memory. A k-tile of 16 output channels by 128 bytes is 2 KB of weights, for one warp, four 16-byte copies a lane. Lane
// (g = lane / 4, t = lane % 4) copies bytes 16t..16t+15 of both halves of output channels 2g and 2g + 1, which are rows g and
// g + 8 of mma's A operand; that permutes k within a k-tile, for x as well. A warp takes one such tile and a k-split of its
// k-tiles through a ring of stages of its own in shared memory, where every lane reads what it copied itself, so that no warp
// waits for another: 64 to 160 KB a multiprocessor are in flight all the time, more than registers could hold. The warps' partial
// sums, and those of the blocks of a cluster, which share K as well, are added by few_rows.cuh.
//
// Operands. int8 by int8 is multiplied as such. Everything else is multiplied in fp16 or bf16, which hold every 8-bit number:
// weights, and an 8-bit x, are converted in registers. A k-tile's sum starts at zero and is added in float32, so that no long sum
// is truncated by the tensor cores.
//
// Where x is to be quantised, every block does so for itself while its first weights are in flight: each row belongs to a team of
// warps, which read it twice, the second time from L1. That is more arithmetic than an earlier kernel would need, 8 instructions
// a value and block, but it saves a launch.
//
// What differs between weight formats is a loader's, RowsOf<W> here and BlocksOf<W, kGranule> in blocks_decode.cuh:
//
//   struct Loader {
//     using Linear;                       // the problem
//     static constexpr Element kType;     // of the weight
//     static constexpr int kTileK;        // k of 128 bytes
//     static constexpr bool kBlocks;      // whether scales come through the ring, too
//     static int k_tile_bytes(p);         // of the ring
//     static constexpr int kTableBytes;   // of shared memory, for what all warps read
//     static float row_scale<T>(p, m);    // the factor of the sums of a row of x
//     struct Lane {                       // what a lane keeps; empty without kBlocks
//       void start<T>(p, table, lane, warp, warps);  // before the first barrier of all threads
//       void aim(p, row, next);           // at output channels 2g and 2g + 1
//       void copy(p, to, k_tile, g, t);   // the scales of a k-tile to the ring
//       auto read<T>(p, from, k_tile, h, g, t) const;       // the scales of half h: `sum` of both rows, and what `pairs` wants
//       void pairs<T>(v, j, scales, row, pairs) const;      // eight k as mma multiplies them: of a lane's 16 bytes those that
//                                                           // are multiplied by piece j of x
//     };
//   };
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/rowwise.cuh"

namespace aoext::cuda::rowwise_decode {

constexpr int kRowBytes = 128;  // of a k-tile and output channel
constexpr int kTileN = 16;      // output channels of a tile
constexpr int kThreads = 512;   // that a block may have, of 128 registers

constexpr int kWeightBytes = kTileN * kRowBytes;  // of a k-tile

// Weights of 8 bits with a scale for each output channel, which the epilogue applies.
template <Element W>
struct RowsOf {
  using Linear = RowwiseLinear;
  static constexpr Element kType = W;
  static constexpr int kTileK = 128;
  static constexpr bool kBlocks = false;
  static constexpr int kTableBytes = 0;
  struct Lane {};

  static __device__ __forceinline__ int k_tile_bytes(const RowwiseLinear&) { return kWeightBytes; }

  template <class T>
  static __device__ __forceinline__ float row_scale(const RowwiseLinear& p, int m) {
    return load_row_scale(p, m);
  }
};

// What a launch needs; every division in the kernel is by one of these, or a multiplication by its magic number.
template <class Linear>
struct Params {
  Linear linear;
  int M;
  uint32_t m_magic;   // ceil(2^20 / M)
  int tile_groups;    // ceil(N / output channels of a block)
  int k_tiles;        // ceil(K / kTileK)
  int split_k_tiles;  // of the k-split of a block in its cluster
  int chunk_k_tiles;  // k-tiles whose x is in shared memory at a time
  int chunks;         // of a k-split
  int warp_stages;    // of a warp in a chunk, a k-tile each
  int ahead;          // bytes of each output channel that are prefetched into L2 while the last kernel ends
  int buffer_stride;  // words to the second buffer of partial sums, 0 where a block has one group of tiles
  int cluster_log2;
};

// What mma's operands are made of: an x of 8 bits, one that is quantised to 8 bits here, or one of 16.
enum class X { eight, quantized, sixteen };

// T: what mma multiplies, int8_t, __half or __nv_bfloat16. Loader: of the weight, whose type an 8-bit x has as well. Octets: of
// rows of x. Depth: stages of a ring, a k-tile each.
template <class T, class Loader, X kX, int Octets, int Depth>
__global__ void __launch_bounds__(kThreads, 1) rowwise_decode_kernel(const __grid_constant__ Params<typename Loader::Linear> p) {
  constexpr Element W = Loader::kType;
  constexpr bool kInteger = std::is_same_v<T, int8_t>, X8 = kX != X::sixteen, kBlocks = Loader::kBlocks;
  using Sum = std::conditional_t<kInteger, int, float>;
  using Linear = typename Loader::Linear;
  constexpr int kTileK = Loader::kTileK, kHalfX = kTileK / 2 * (X8 ? 1 : 2), kPieces = kTileK / 64;
  constexpr int kRowX = 2 * kHalfX;  // bytes of a row of x in a k-tile; of a half, kPieces times 16 a lane where x has 16 bits
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x, slice = threadIdx.y, tile = threadIdx.z, g = lane >> 2, t = lane & 3;
  const int slices = blockDim.y, tiles = blockDim.z, warps = slices * tiles, warp = tile * slices + slice;
  const int rank = blockIdx.x, cluster = gridDim.x;
  const int split_begin = rank * p.split_k_tiles, split_end = min(split_begin + p.split_k_tiles, p.k_tiles);
  const Linear& linear = p.linear;
  const int k_tile_bytes = Loader::k_tile_bytes(linear);
  const int K = static_cast<int>(linear.K), row_bytes = K / (kTileK / kRowBytes);

  // Shared memory: the loader's table, x [k-tile of the chunk][m] of kRowX, the warps' rings, two barriers, row scales, two
  // tables of a group's channels, partial sums.
  const uint32_t xs = shared_address(smem) + Loader::kTableBytes;
  const uint32_t ring = xs + p.chunk_k_tiles * p.M * kRowX + warp * Depth * k_tile_bytes + lane * 16;
  const uint32_t scales_at = ring - lane * 16 + kWeightBytes;
  uint8_t* const beyond = smem + Loader::kTableBytes + p.chunk_k_tiles * p.M * kRowX + warps * Depth * k_tile_bytes;
  float* const row_scales = reinterpret_cast<float*>(beyond + 16);
  Channel* const channels = reinterpret_cast<Channel*>(row_scales + Octets * 8);
  const int table = tiles * kTileN;  // channels of a group, fewer than threads
  const SplitKReduction<Sum> reduction{reinterpret_cast<Sum*>(channels + 2 * table),
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

  // -- Weights: a cursor that runs a ring ahead of the sums. For output channels past the last, the last is read, and nothing
  // stored; k past K are zeros.
  struct {
    int group, chunk, step, k_tile, end;
    const uint8_t* weight;  // of the lane's output channel 2g
    uint32_t to_next;       // bytes to its row 2g + 1
  } at;
  typename Loader::Lane scales_ahead, scales;  // of the cursor's output channels, and of those that are multiplied
  const auto aim = [&](int group) {
    const int last = static_cast<int>(linear.N) - 1, row = min((group * tiles + tile) * kTileN + 2 * g, last);
    at.weight = static_cast<const uint8_t*>(linear.weight) + row * (linear.K / (kTileK / kRowBytes)) + t * 16;
    at.to_next = row < last ? row_bytes : 0;
    if constexpr (kBlocks) scales_ahead.aim(linear, row, min(row + 1, last));
  };
  const auto aim_chunk = [&](int chunk) {
    const int begin = split_begin + chunk * p.chunk_k_tiles;
    at.k_tile = begin + slice;
    at.end = min(begin + p.chunk_k_tiles, split_end);
  };
  const auto fetch = [&](int slot) {
    if (at.group < p.tile_groups && at.k_tile < at.end) {
      const uint32_t to = ring + slot * k_tile_bytes;
      const int byte = at.k_tile * kRowBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = byte + h * 64 + t * 16 < row_bytes;
        const uint8_t* from = at.weight + (inside ? byte + h * 64 : 0);
        copy16(to + h * 1024, from, inside);
        copy16(to + h * 1024 + 512, from + at.to_next, inside);
      }
      if constexpr (kBlocks) scales_ahead.copy(linear, scales_at + slot * k_tile_bytes, at.k_tile, g, t);
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

  // -- x: a chunk of k-tiles to shared memory. Four lanes take one (k-tile, m) at a time. The lanes of neighbouring rows read
  // different halves of 128 bytes, which is why the halves of every other row are swapped.
  const auto place = [&](int m, int piece) {  // of 16 bytes of a row
    if constexpr (kPieces == 4)
      return (piece ^ (m & 1) * 2 ^ (piece >> 3 & 1)) * 16;
    else
      return (piece ^ (m & 1) * (X8 ? 4 : 1)) * 16;
  };
  const auto copy_x = [&](int begin, int end) {
    const int count = (end - begin) * p.M;
#pragma unroll 1
    for (int item = warp * 8 + g; item < count; item += warps * 8) {
      const int k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
      const auto* from = static_cast<const uint8_t*>(linear.x) + (m * linear.K + (begin + k_tile) * kTileK) * (X8 ? 1 : 2);
#pragma unroll
      for (int i = 0; i < kRowX / 64; ++i) {
        const int piece = i * 4 + t;
        const bool inside = (begin + k_tile) * kTileK + piece * (X8 ? 16 : 8) < K;
        copy16_cached(xs + item * kRowX + place(m, piece), inside ? from + piece * 16 : from, inside);
      }
    }
  };
  // An x to be quantised: all of the k-split. There are no fewer warps than rows. A row's first vectors are loaded before the
  // ring is, behind which they would come late.
  constexpr int kVectors = 4;  // of 16 bytes, that a thread has in flight
  const int team = warps * p.m_magic >> 20, in_team = warp * p.m_magic >> 20, own_m = warp - in_team * p.M;
  const int own = in_team * 32 + lane, step = team * 32;
  const auto ask_for_row = [&](uint4(&vectors)[kVectors], int base) {
    const int bytes = K * (linear.type == Element::fp32 ? 4 : 2), count = in_team < team ? bytes / 16 : 0;
    const auto* row = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(linear.x) + own_m * int64_t{bytes});
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = base + i * step < count ? row[base + i * step] : uint4{};
  };
  const auto quantize_x = [&](auto of_type, uint4(&vectors)[kVectors]) {
    using S = decltype(of_type);
    constexpr int kCount = 16 / sizeof(S);
    using Vector = quantize::Words<4>;
    auto* const absmax_of_warps = reinterpret_cast<uint32_t*>(reduction.partial) + own_m * team;  // before sums are there
    uint32_t absmax = 0;
#pragma unroll 1
    for (int base = own;;) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) absmax = quantize::absmax_of<S>(bits<Vector>(vectors[i]), absmax);
      base += kVectors * step;
      if (base >= K / kCount) break;
      ask_for_row(vectors, base);
    }
    absmax = __reduce_max_sync(0xffffffff, absmax);
    if (lane == 0 && in_team < team) absmax_of_warps[in_team] = absmax;
    __syncthreads();
    if (in_team >= team) return;
    const quantize::Row<W> quantized(__reduce_max_sync(0xffffffff, lane < team ? absmax_of_warps[lane] : 0));
    if (own == 0) row_scales[own_m] = quantized.stored_scale();
    const S* const row = static_cast<const S*>(linear.x) + own_m * linear.K;
#pragma unroll 1
    for (int at = own; at < (split_end - split_begin) * (kTileK / 16); at += step) {
      const int k = split_begin * kTileK + at * 16, k_tile = at / (kTileK / 16);
      quantize::Words<4> codes{};
#pragma unroll
      for (int i = 0; i < 16; i += kCount)
        if (k < K) {
          const auto some = quantized.template codes<S, kCount>(quantize::load_piece<S, kCount>(row, (k + i) / kCount));
#pragma unroll
          for (int j = 0; j < kCount / 4; ++j) codes.w[i / 4 + j] = some.w[j];
        }
      store_shared_16(xs + (k_tile * p.M + own_m) * kRowX + place(own_m, at % (kTileK / 16)),
                      {codes.w[0], codes.w[1], codes.w[2], codes.w[3]});
    }
  };

  // -- y: this warp's output channels
  Sum y[Octets][4];
  uint32_t column[Octets];  // this lane's row of x as a column of B
#pragma unroll
  for (int o = 0; o < Octets; ++o) {
    const int m = min(o * 8 + g, p.M - 1);
    column[o] = xs + m * kRowX + place(m, X8 ? t : kPieces * t);
  }
  // Independent accumulators, so that one mma does not wait for another; as many as registers allow.
  constexpr int kChains = Octets == 1 && !kInteger ? 4 : X8 ? 2 : 1;
  const auto compute = [&](int slot, int k_tile, int first_k_tile) {  // k_tile: of the chunk that begins at first_k_tile
    const uint32_t from = ring + slot * k_tile_bytes, x = k_tile * p.M * kRowX;
    Sum acc[kChains][Octets][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 v = load_shared_16(from + h * 1024), w = load_shared_16(from + h * 1024 + 512);  // rows 2g and 2g + 1
      if constexpr (kBlocks) {
        const auto of_half = scales.template read<T>(linear, scales_at + slot * k_tile_bytes, first_k_tile + k_tile, h, g, t);
        float (&sum)[Octets][4] = acc[h % kChains];
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          uint4 b[Octets];
#pragma unroll
          for (int o = 0; o < Octets; ++o) b[o] = load_shared_16(((column[o] + x) ^ j * 16) + h * kHalfX);
          uint32_t upper[4], lower[4];
          scales.template pairs<T>(v, j, of_half, 0, upper);
          scales.template pairs<T>(w, j, of_half, 1, lower);
#pragma unroll
          for (int o = 0; o < Octets; ++o) mma<T>(sum[o], {upper[0], lower[0], upper[1], lower[1]}, b[o].x, b[o].y);
#pragma unroll
          for (int o = 0; o < Octets; ++o) mma<T>(sum[o], {upper[2], lower[2], upper[3], lower[3]}, b[o].z, b[o].w);
        }
#pragma unroll
        for (int i = 0; i < Octets * 4; ++i) {
          y[i / 4][i % 4] = fmaf(sum[i / 4][i % 4], i % 4 < 2 ? of_half.sum[0] : of_half.sum[1], y[i / 4][i % 4]);
          sum[i / 4][i % 4] = 0;
        }
      } else if constexpr (kInteger) {
#pragma unroll
        for (int o = 0; o < Octets; ++o) {
          const uint4 b = load_shared_16((column[o] + x) ^ h * 64);
          mma(acc[h][o], {v.x, w.x, v.y, w.y}, b.x, b.y);
          mma(acc[h][o], {v.z, w.z, v.w, w.w}, b.z, b.w);
        }
      } else {
        uint4 b[Octets][2];  // of 16 k: eight and eight
#pragma unroll
        for (int o = 0; o < Octets; ++o) {
          if constexpr (X8) {
            const uint4 q = load_shared_16((column[o] + x) ^ h * 64);
            const uint2 b0 = widened<T, W>(q.x), b1 = widened<T, W>(q.y), b2 = widened<T, W>(q.z), b3 = widened<T, W>(q.w);
            b[o][0] = {b0.x, b0.y, b1.x, b1.y}, b[o][1] = {b2.x, b2.y, b3.x, b3.y};
          } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) b[o][j] = load_shared_16(((column[o] + x) ^ j * 16) + h * 128);
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint2 a0 = widened<T, W>(j ? v.z : v.x), a1 = widened<T, W>(j ? w.z : w.x);
          const uint2 a2 = widened<T, W>(j ? v.w : v.y), a3 = widened<T, W>(j ? w.w : w.y);
#pragma unroll
          for (int o = 0; o < Octets; ++o) mma<T>(acc[(2 * h + j) % kChains][o], {a0.x, a1.x, a0.y, a1.y}, b[o][j].x, b[o][j].y);
#pragma unroll
          for (int o = 0; o < Octets; ++o) mma<T>(acc[(2 * h + j) % kChains][o], {a2.x, a3.x, a2.y, a3.y}, b[o][j].z, b[o][j].w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Octets * 4 && !kBlocks; ++i) {
      Sum sum = acc[0][i / 4][i % 4];
      if constexpr (kChains > 1) sum += acc[1][i / 4][i % 4];
      if constexpr (kChains > 2) sum += acc[2][i / 4][i % 4] + acc[3][i / 4][i % 4];
      y[i / 4][i % 4] += sum;
    }
  };

  // -- Outputs. A thread loads an output channel's scale and bias as a turn begins, and stores them to shared memory as it ends.
  const int thread = warp * 32 + lane;
  const auto store = [&](int turn, int in_block, int m, Sum sum) {
    const int in_group = in_block * kTileN + (lane & 15);
    const int64_t n = static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * table + in_group;
    if (n < linear.N) store_output(linear, m, n, sum, row_scales[m], channels[(turn & 1) * table + in_group]);
  };

  // -- The loop
  at.group = blockIdx.y, at.chunk = 0, at.step = 0;
  aim(at.group);
  aim_chunk(0);
  if (p.ahead) {
    const int64_t row = static_cast<int64_t>(at.group * tiles + tile) * kTileN + lane;
    const int from = split_begin * kRowBytes, bytes = min(min(split_end * kRowBytes, row_bytes) - from, p.ahead);
    if (slice == 0 && lane < kTileN && row < linear.N && bytes > 0)
      prefetch_bulk(static_cast<const uint8_t*>(linear.weight) + row * (linear.K / (kTileK / kRowBytes)) + from, bytes);
  }
  wait_for_last_kernel();
  start_next_kernel();
  uint4 vectors[kVectors];
  if constexpr (kX == X::quantized)
    ask_for_row(vectors, own);
  else
    copy_x(split_begin, min(split_begin + p.chunk_k_tiles, split_end));
  commit_copies();
#pragma unroll 1
  for (int d = 0; d < Depth; ++d) fetch(d);
  if constexpr (kBlocks) scales.template start<T>(linear, shared_address(smem), lane, warp, warps);
  reduction.start();
  if constexpr (kX == X::quantized) {
    switch (linear.type) {
      case Element::bf16: quantize_x(__nv_bfloat16(), vectors); break;
      case Element::fp16: quantize_x(__half(), vectors); break;
      default: quantize_x(float(), vectors);
    }
  } else {
    if (thread < p.M) row_scales[thread] = Loader::template row_scale<T>(linear, thread);
  }
  int turn = 0, slot = 0;
  for (int group = blockIdx.y; group < p.tile_groups; group += gridDim.y, ++turn) {
    if constexpr (kBlocks) {
      const int last = static_cast<int>(linear.N) - 1, row = min((group * tiles + tile) * kTileN + 2 * g, last);
      scales.aim(linear, row, min(row + 1, last));
    }
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
          if (kX != X::quantized) copy_x(begin, end);
          wait_all_copies();
        } else {
          wait_copies<Depth>();
        }
        __syncthreads();
      }
#pragma unroll 1
      for (int k_tile = slice, i = 0; i < p.warp_stages; ++i, k_tile += slices) {
        wait_copies<Depth - 1>();
        if constexpr (kBlocks) __syncwarp();  // a lane reads scales that others copied
        if (begin + k_tile < end) compute(slot, k_tile, begin);
        if constexpr (kBlocks) __syncwarp();
        fetch(slot);
        slot = slot + 1 == Depth ? 0 : slot + 1;
      }
    }
    if (thread < table) channels[(turn & 1) * table + thread] = channel_of(linear, channel);
    reduction.put(turn, tile, slice, y);
    reduction.reduce(turn, store);
  }
  reduction.end(turn, store);
}

}  // namespace aoext::cuda::rowwise_decode
