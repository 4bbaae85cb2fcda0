// Products with 8-bit weights (rowwise.h), and with a scale a block of weights of 8 or 4 bits (blocks.h), for few rows m, limited
// by reading the weight.
//
// Walk. A unit is 16 rows n by 128 bytes: 2 KB of weights, one warp, four 16-byte copies a lane. Lane (g = lane / 4, t = lane %
// 4) copies bytes 16t..16t+15 of both halves of rows 2g and 2g + 1, which are rows g and g + 8 of mma's A operand; that permutes
// k within a unit, for x as well. A warp takes one such tile of rows and a slice of their k through a ring of its own in shared
// memory, where every lane reads what it copied itself, so that nobody waits for anybody: 64 to 160 KB a multiprocessor are on
// their way all the time, which registers could not hold. Slices meet in shared memory; the k of a block is a part of K where
// blocks of a cluster share it (few_rows.cuh).
//
// int8 by int8 is multiplied as such. Everything else is in fp16 or bf16, which hold every 8-bit number: weights, and an 8-bit x,
// become such in registers. A unit's sum starts at zero and is added in float32, so that no long sum is subject to the tensor
// cores' truncation.
//
// An x to be quantised is so by every block for itself, while its first weights are on their way: each row belongs to a team of
// warps, which read it twice, the second time from L1. That is more arithmetic than one kernel before would need, 8 instructions
// a value and block, but no launch.
//
// What differs between formats of weights is a loader's, RowsOf<W> here and BlocksOf<W, kScaled> in blocks_decode.cuh:
//
//   struct Loader {
//     using Linear;                       // the problem
//     static constexpr Element kType;     // of the weight
//     static constexpr int kUnitK;        // k of 128 bytes
//     static constexpr bool kBlocks;      // whether scales go through the ring, too
//     static int unit_bytes(p);           // of the ring
//     static constexpr int kTableBytes;   // of shared memory, for what all warps read
//     static float row_scale<T>(p, m);    // that ends the sums of a row of x
//     struct Lane {                       // what a lane keeps; nothing without kBlocks
//       void start<T>(p, table, lane, warp, warps);  // before all threads meet
//       void aim(p, row, next);           // at rows 2g and 2g + 1
//       void copy(p, to, unit, g, t);     // the scales of a unit to the ring
//       auto read<T>(p, from, unit, h, g, t) const;         // the scales of half h: `sum` of both rows, and what `pairs` wants
//       void pairs<T>(v, j, scales, row, pairs) const;      // eight k as mma multiplies them: of a lane's 16 bytes those that
//                                                           // stand beside piece j of x
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

constexpr int kRowBytes = 128;  // of a unit and row n
constexpr int kTileN = 16;      // rows n of a tile
constexpr int kThreads = 512;   // that a block may have, of 128 registers

constexpr int kWeightBytes = kTileN * kRowBytes;  // of a unit

// Weights of 8 bits with a scale a row, which is the epilogue's.
template <Element W>
struct RowsOf {
  using Linear = RowwiseLinear;
  static constexpr Element kType = W;
  static constexpr int kUnitK = 128;
  static constexpr bool kBlocks = false;
  static constexpr int kTableBytes = 0;
  struct Lane {};

  static __device__ __forceinline__ int unit_bytes(const RowwiseLinear&) { return kWeightBytes; }

  template <class T>
  static __device__ __forceinline__ float row_scale(const RowwiseLinear& p, int m) {
    return load_row_scale(p, m);
  }
};

// What a launch needs; every division a kernel does is by a constant of these.
template <class Linear>
struct Walk {
  Linear linear;
  int M;
  uint32_t m_magic;   // ceil(2^20 / M)
  int tile_groups;    // ceil(N / rows of a block): the blocks' work along n
  int units;          // ceil(K / k of a unit)
  int part_units;     // of a block's part of K
  int chunk_units;    // of x in shared memory at a time
  int chunks;         // of a part
  int warp_steps;     // of a warp in a chunk, a unit each
  int ahead;          // bytes of each row that L2 is asked for while the last kernel ends
  int buffer_stride;  // words to the second buffer of partial sums, 0 where a block does one group of tiles
  int cluster_log2;
};

// x as mma's operands are made of it: of 8 bits, which it has or is given here, or of 16.
enum class X { eight, quantized, sixteen };

// T: what mma multiplies, int8_t, __half or __nv_bfloat16. Loader: of the weight, whose type x has where it has 8 bits. Octets:
// of rows m. Depth: units that a warp has on the way.
template <class T, class Loader, X kX, int Octets, int Depth>
__global__ void __launch_bounds__(kThreads, 1) rowwise_decode_kernel(const __grid_constant__ Walk<typename Loader::Linear> p) {
  constexpr Element W = Loader::kType;
  constexpr bool kInteger = std::is_same_v<T, int8_t>, X8 = kX != X::sixteen, kBlocks = Loader::kBlocks;
  using Sum = std::conditional_t<kInteger, int, float>;
  using Linear = typename Loader::Linear;
  constexpr int kUnitK = Loader::kUnitK, kHalfX = kUnitK / 2 * (X8 ? 1 : 2), kPieces = kUnitK / 64;
  constexpr int kRowX = 2 * kHalfX;  // bytes of x of a unit and m; of a half, kPieces times 16 a lane where it has 16 bits
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x, slice = threadIdx.y, tile = threadIdx.z, g = lane >> 2, t = lane & 3;
  const int slices = blockDim.y, tiles = blockDim.z, warps = slices * tiles, warp = tile * slices + slice;
  const int rank = blockIdx.x, cluster = gridDim.x;
  const int part_begin = rank * p.part_units, part_end = min(part_begin + p.part_units, p.units);
  const Linear& linear = p.linear;
  const int unit_bytes = Loader::unit_bytes(linear);
  const int K = static_cast<int>(linear.K), row_bytes = K / (kUnitK / kRowBytes);

  // Shared memory: the loader's table, x [chunk unit][m] of kRowX, the warps' rings, two barriers, row scales, two tables of a
  // group's channels, partial sums.
  const uint32_t xs = shared_address(smem) + Loader::kTableBytes;
  const uint32_t ring = xs + p.chunk_units * p.M * kRowX + warp * Depth * unit_bytes + lane * 16;
  const uint32_t scales_at = ring - lane * 16 + kWeightBytes;
  uint8_t* const beyond = smem + Loader::kTableBytes + p.chunk_units * p.M * kRowX + warps * Depth * unit_bytes;
  float* const row_scales = reinterpret_cast<float*>(beyond + 16);
  Channel* const channels = reinterpret_cast<Channel*>(row_scales + Octets * 8);
  const int table = tiles * kTileN;  // channels of a group, fewer than threads
  const Meeting<Sum> meeting{reinterpret_cast<Sum*>(channels + 2 * table),
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

  // -- Weights: a cursor that runs a ring ahead of the sums. Rows past the last are read as that, and not written; k past K are
  // zeros.
  struct {
    int group, chunk, step, unit, end;
    const uint8_t* weight;  // of the lane's row 2g
    uint32_t to_next;       // bytes to its row 2g + 1
  } at;
  typename Loader::Lane scales_ahead, scales;  // of the cursor's rows, and of those that are added up
  const auto aim = [&](int group) {
    const int last = static_cast<int>(linear.N) - 1, row = min((group * tiles + tile) * kTileN + 2 * g, last);
    at.weight = static_cast<const uint8_t*>(linear.weight) + row * (linear.K / (kUnitK / kRowBytes)) + t * 16;
    at.to_next = row < last ? row_bytes : 0;
    if constexpr (kBlocks) scales_ahead.aim(linear, row, min(row + 1, last));
  };
  const auto aim_chunk = [&](int chunk) {
    const int begin = part_begin + chunk * p.chunk_units;
    at.unit = begin + slice;
    at.end = min(begin + p.chunk_units, part_end);
  };
  const auto fetch = [&](int slot) {
    if (at.group < p.tile_groups && at.unit < at.end) {
      const uint32_t to = ring + slot * unit_bytes;
      const int byte = at.unit * kRowBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = byte + h * 64 + t * 16 < row_bytes;
        const uint8_t* from = at.weight + (inside ? byte + h * 64 : 0);
        copy16(to + h * 1024, from, inside);
        copy16(to + h * 1024 + 512, from + at.to_next, inside);
      }
      if constexpr (kBlocks) scales_ahead.copy(linear, scales_at + slot * unit_bytes, at.unit, g, t);
    }
    commit_copies();
    at.unit += slices;
    if (++at.step == p.warp_steps) {
      at.step = 0;
      if (++at.chunk == p.chunks) {
        at.chunk = 0, at.group += gridDim.y;
        aim(at.group);
      }
      aim_chunk(at.chunk);
    }
  };

  // -- x: a chunk of units to shared memory. Four lanes take a (unit, m) at a time. The lanes of neighbouring m read other
  // halves of 128 bytes, which is why these change places.
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
      const int unit = item * p.m_magic >> 20, m = item - unit * p.M;
      const auto* from = static_cast<const uint8_t*>(linear.x) + (m * linear.K + (begin + unit) * kUnitK) * (X8 ? 1 : 2);
#pragma unroll
      for (int i = 0; i < kRowX / 64; ++i) {
        const int piece = i * 4 + t;
        const bool inside = (begin + unit) * kUnitK + piece * (X8 ? 16 : 8) < K;
        copy16_cached(xs + item * kRowX + place(m, piece), inside ? from + piece * 16 : from, inside);
      }
    }
  };
  // An x to be quantised: all of the part. There are no fewer warps than rows. A row's first vectors are asked for before the
  // ring, behind which they would come late.
  constexpr int kVectors = 4;  // of 16 bytes, that a thread has on the way
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
    auto* const absmax_of_warps = reinterpret_cast<uint32_t*>(meeting.partial) + own_m * team;  // before sums are there
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
    for (int at = own; at < (part_end - part_begin) * (kUnitK / 16); at += step) {
      const int k = part_begin * kUnitK + at * 16, unit = at / (kUnitK / 16);
      quantize::Words<4> codes{};
#pragma unroll
      for (int i = 0; i < 16; i += kCount)
        if (k < K) {
          const auto some = quantized.template codes<S, kCount>(quantize::load_piece<S, kCount>(row, (k + i) / kCount));
#pragma unroll
          for (int j = 0; j < kCount / 4; ++j) codes.w[i / 4 + j] = some.w[j];
        }
      store_shared_16(xs + (unit * p.M + own_m) * kRowX + place(own_m, at % (kUnitK / 16)),
                      {codes.w[0], codes.w[1], codes.w[2], codes.w[3]});
    }
  };

  // -- y: this warp's rows n
  Sum y[Octets][4];
  uint32_t column[Octets];  // this lane's m as a column of B
#pragma unroll
  for (int o = 0; o < Octets; ++o) {
    const int m = min(o * 8 + g, p.M - 1);
    column[o] = xs + m * kRowX + place(m, X8 ? t : kPieces * t);
  }
  // Sums that do not wait for each other, as many as registers allow.
  constexpr int kChains = Octets == 1 && !kInteger ? 4 : X8 ? 2 : 1;
  const auto compute = [&](int slot, int unit, int first_unit) {  // unit: of the chunk that begins at first_unit
    const uint32_t from = ring + slot * unit_bytes, x = unit * p.M * kRowX;
    Sum acc[kChains][Octets][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 v = load_shared_16(from + h * 1024), w = load_shared_16(from + h * 1024 + 512);  // rows 2g and 2g + 1
      if constexpr (kBlocks) {
        const auto of_half = scales.template read<T>(linear, scales_at + slot * unit_bytes, first_unit + unit, h, g, t);
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

  // -- Outputs. A thread fetches a channel's scale and bias as a turn begins and puts them where all can read them as it ends.
  const int thread = warp * 32 + lane;
  const auto store = [&](int turn, int in_block, int m, Sum sum) {
    const int in_group = in_block * kTileN + (lane & 15);
    const int64_t n = static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * table + in_group;
    if (n < linear.N) store_output(linear, m, n, sum, row_scales[m], channels[(turn & 1) * table + in_group]);
  };

  // -- The walk
  at.group = blockIdx.y, at.chunk = 0, at.step = 0;
  aim(at.group);
  aim_chunk(0);
  if (p.ahead) {
    const int64_t row = static_cast<int64_t>(at.group * tiles + tile) * kTileN + lane;
    const int from = part_begin * kRowBytes, bytes = min(min(part_end * kRowBytes, row_bytes) - from, p.ahead);
    if (slice == 0 && lane < kTileN && row < linear.N && bytes > 0)
      prefetch_bulk(static_cast<const uint8_t*>(linear.weight) + row * (linear.K / (kUnitK / kRowBytes)) + from, bytes);
  }
  wait_for_last_kernel();
  start_next_kernel();
  uint4 vectors[kVectors];
  if constexpr (kX == X::quantized)
    ask_for_row(vectors, own);
  else
    copy_x(part_begin, min(part_begin + p.chunk_units, part_end));
  commit_copies();
#pragma unroll 1
  for (int d = 0; d < Depth; ++d) fetch(d);
  if constexpr (kBlocks) scales.template start<T>(linear, shared_address(smem), lane, warp, warps);
  meeting.start();
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
      const int begin = part_begin + chunk * p.chunk_units, end = min(begin + p.chunk_units, part_end);
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
      for (int unit = slice, i = 0; i < p.warp_steps; ++i, unit += slices) {
        wait_copies<Depth - 1>();
        if constexpr (kBlocks) __syncwarp();  // a lane reads scales that others copied
        if (begin + unit < end) compute(slot, unit, begin);
        if constexpr (kBlocks) __syncwarp();
        fetch(slot);
        slot = slot + 1 == Depth ? 0 : slot + 1;
      }
    }
    if (thread < table) channels[(turn & 1) * table + thread] = channel_of(linear, channel);
    meeting.put(turn, tile, slice, y);
    meeting.meet(turn, store);
  }
  meeting.end(turn, store);
}

}  // namespace aoext::cuda::rowwise_decode
