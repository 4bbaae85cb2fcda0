// Scales of blocks as kernels for many rows of x want them: [K / granule, N] of x's type, whatever their block and type, by a
// kernel before the product. For fp16, whose range is shorter than that of the scales, they are relative to the largest scale of
// an output channel, which becomes part of that channel's factor.
//
// A few hundred KB are read and twice that written, so what counts is how often a thread waits for memory, one load after
// another, and for its instructions, each of which runs once: all loads of a block come first, eight granules of a row at once
// where scales lie so, types of scales are told apart once for all, and a thread stores 16 bytes.
#pragma once

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda {

// The output of arrange_scales, for the product. Experts have all of it but the table each, one behind the other.
struct Arranged {
  void* scales;             // [K / granule, stride] of x's type
  float *largest, *factor;  // [N]; `largest` is null where scales are not relative to it; the factor multiplies sums
  Table16* table;
  int64_t groups, stride;  // rows, and their length: N rounded up to 16 bytes
};

constexpr int kArrangeRows = 64, kArrangeGroups = 32, kArrangeThreads = 256;

// How scales lie, as arrange_scales reads them.
enum class ScaleRows {
  any,
  pieces,  // a row for each output channel, a scale for each granule, eight of them at a multiple of 16 bytes or of all of them
  shared,  // one row for all output channels of a block
};

inline ScaleRows scale_rows_of(const BlockLinear& p, int granule) {
  if (p.block_n % kArrangeRows == 0 || p.block_n >= p.N) return ScaleRows::shared;
  // Rows of multiples of eight scales: those of each expert begin at such a place, too.
  const bool pieces = p.block_n == 1 && p.block_k == granule && scale_columns(p) % 8 == 0 && is_aligned(p.block_scale);
  return pieces ? ScaleRows::pieces : ScaleRows::any;
}

// The row of scales of output channel n.
__device__ __forceinline__ int64_t scale_row(const BlockLinear& p, int64_t n) {
  return p.block_n == 1 ? n : static_cast<uint32_t>(n) / static_cast<uint32_t>(min(p.block_n, p.N));
}

// The largest finite magnitude of the scales of a row that a thread has, every `step`th, and `other`: as the bits of a float.
__device__ __forceinline__ uint32_t largest_scale(const BlockLinear& p, int64_t row, int64_t columns, int first, int step) {
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t i = first; i < columns; i += step) {
    const uint32_t magnitude = __float_as_uint(load_block_scale(p, row * columns + i)) & 0x7fffffff;
    largest = max(largest, magnitude < 0x7f800000 ? magnitude : 0);
  }
  return __reduce_max_sync(~0u, largest);
}

__device__ __forceinline__ float as_divisor(uint32_t largest) { return largest == 0 ? 1.0f : __uint_as_float(largest); }

// body(p, a) of the block's expert, whose place along z it is, unless that has no rows.
template <class T, class Body>
__device__ __forceinline__ void of_own_expert(const BlockLinear& p, const Arranged& a, Body&& body) {
  const int expert = blockIdx.z, end = p.ends[expert];
  if (end <= (expert > 0 ? max(p.ends[expert - 1], 0) : 0)) return;
  Arranged own = a;
  own.scales = static_cast<T*>(a.scales) + expert * a.groups * a.stride;
  own.factor = a.factor + expert * p.N;
  if (a.largest) own.largest = a.largest + expert * p.N;
  body(of_expert(p, expert), own);
}

// The largest finite scale of each output channel.
__device__ __forceinline__ void find_largest_of_block(const BlockLinear& p, const Arranged& a, int64_t columns) {
  const int64_t n = int64_t{blockIdx.x} * (kArrangeThreads / 32) + threadIdx.x / 32;
  if (n >= p.N) return;
  const uint32_t largest = largest_scale(p, scale_row(p, n), columns, threadIdx.x % 32, 32);
  if (threadIdx.x % 32 == 0) a.largest[n] = as_divisor(largest);
}

static __global__ void __launch_bounds__(kArrangeThreads)
    find_largest(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  find_largest_of_block(p, a, columns);
}

template <class T>
__global__ void __launch_bounds__(kArrangeThreads)
    find_largest_of_experts(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  of_own_expert<T>(p, a, [&](const BlockLinear& own, const Arranged& to) { find_largest_of_block(own, to, columns); });
}

// The table as numbers of x's type, by one thread.
template <class T>
__device__ __forceinline__ void arrange_table(const BlockLinear& p, const Arranged& a) {
  if (p.table && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0)
    a.table->template read<T>(p.table, table_factor<T>(p.table));
}

// The largest finite scale of a block's one row.
__device__ __forceinline__ float largest_of_block(const BlockLinear& p, int64_t row, int64_t columns) {
  __shared__ uint32_t of_warps[kArrangeThreads / 32];
  const uint32_t mine = largest_scale(p, row, columns, threadIdx.x, kArrangeThreads);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  uint32_t largest = 0;
#pragma unroll
  for (const uint32_t of_warp : of_warps) largest = max(largest, of_warp);
  return as_divisor(largest);
}

// Bits of eight scales of one row, for scale_of_bits.
__device__ __forceinline__ void load_piece_bits(const BlockLinear& p, int64_t i, uint32_t (&raw)[8]) {
  const char* const from = static_cast<const char*>(p.block_scale);
  if (p.block_scale_type == Element::fp32) {
    const uint4 low = *reinterpret_cast<const uint4*>(from + 4 * i), high = *reinterpret_cast<const uint4*>(from + 4 * i + 16);
    raw[0] = low.x, raw[1] = low.y, raw[2] = low.z, raw[3] = low.w;
    raw[4] = high.x, raw[5] = high.y, raw[6] = high.z, raw[7] = high.w;
  } else if (p.block_scale_type == Element::bf16 || p.block_scale_type == Element::fp16) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + 2 * i);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) raw[j] = words[j / 2] >> 16 * (j % 2) & 0xffff;
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(from + i);
#pragma unroll
    for (int j = 0; j < 8; ++j) raw[j] = (j < 4 ? v.x : v.y) >> 8 * (j % 4) & 0xff;
  }
}

// Tiles of 64 output channels by 32 granules, of which a thread has eight.
template <class T, int kGranule, ScaleRows kRows>
__device__ __forceinline__ void arrange_tile(const BlockLinear& p, const Arranged& a, int64_t columns) {
  constexpr int kEach = kArrangeRows * kArrangeGroups / kArrangeThreads, kStep = kArrangeThreads / kArrangeGroups;
  constexpr bool kPieces = kRows == ScaleRows::pieces, kShared = kRows == ScaleRows::shared;
  constexpr int kDistinct = kShared ? 1 : kEach, kDivisors = kRows == ScaleRows::any ? kEach : 1;
  static_assert(kEach == 8);
  __shared__ alignas(16) T tile[kArrangeGroups][kArrangeRows + 8];
  const int64_t n0 = int64_t{blockIdx.x} * kArrangeRows, g0 = int64_t{blockIdx.y} * kArrangeGroups;
  // The row and granule of a thread's scale i in the tile.
  const auto row_of = [](int i) { return kPieces ? threadIdx.x % kArrangeRows : threadIdx.x / kArrangeGroups + i * kStep; };
  const auto group_of = [](int i) { return kPieces ? threadIdx.x / kArrangeRows * kEach + i : threadIdx.x % kArrangeGroups; };
  const auto inside = [&](int i) { return n0 + row_of(i) < p.N && (g0 + group_of(i)) * kGranule < p.K; };

  uint32_t raw[kDistinct] = {};
  float scale[kDistinct], divisor[kDivisors];
  if constexpr (kPieces) {
    if (inside(0)) load_piece_bits(p, (n0 + row_of(0)) * columns + g0 + group_of(0), raw);
  } else {
    const auto k = static_cast<uint32_t>((g0 + group_of(0)) * kGranule);
    const int64_t column = k / static_cast<uint32_t>(min(p.block_k, p.K));
    load_scale_bits<kDistinct>(p.block_scale, p.block_scale_type, raw, [&](int i) {
      return (kShared ? k < p.K : inside(i)) ? scale_row(p, kShared ? n0 : n0 + row_of(i)) * columns + column : -1;
    });
  }
#pragma unroll
  for (int i = 0; i < kDivisors; ++i) divisor[i] = !kShared && a.largest && inside(i) ? a.largest[n0 + row_of(i)] : 1.0f;
  if (kShared && a.largest) divisor[0] = largest_of_block(p, scale_row(p, n0), columns);
  if (blockIdx.y == 0 && threadIdx.x < kArrangeRows && n0 + threadIdx.x < p.N) {
    const float table = p.table ? table_factor<T>(p.table) : 1.0f;
    const float own = kShared ? divisor[0] : a.largest ? a.largest[n0 + threadIdx.x] : 1.0f;
    a.factor[n0 + threadIdx.x] = own * (global_scale(p) / table);
  }
  scales_of_bits<kDistinct>(raw, p.block_scale_type, scale);
  if (a.largest)
#pragma unroll
    for (int i = 0; i < kDistinct; ++i) scale[i] /= divisor[kDivisors == 1 ? 0 : i];
#pragma unroll
  for (int i = 0; i < kEach; ++i) tile[group_of(i)][row_of(i)] = rounded<T>(inside(i) ? scale[kShared ? 0 : i] : 0);
  __syncthreads();
  const int group = threadIdx.x / 8, row = threadIdx.x % 8 * 8;
  if (n0 + row < a.stride && g0 + group < a.groups)
    *reinterpret_cast<uint4*>(static_cast<T*>(a.scales) + (g0 + group) * a.stride + n0 + row) =
        *reinterpret_cast<const uint4*>(&tile[group][row]);
}

template <class T, int kGranule, ScaleRows kRows>
__global__ void __launch_bounds__(kArrangeThreads)
    arrange_scales(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  arrange_table<T>(p, a);
  arrange_tile<T, kGranule, kRows>(p, a, columns);
}

template <class T, int kGranule, ScaleRows kRows>
__global__ void __launch_bounds__(kArrangeThreads)
    arrange_scales_of_experts(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  arrange_table<T>(p, a);
  of_own_expert<T>(p, a, [&](const BlockLinear& own, const Arranged& to) { arrange_tile<T, kGranule, kRows>(own, to, columns); });
}

template <class T, int kGranule, ScaleRows kRows>
auto arrange_kernel(bool experts) {
  return experts ? arrange_scales_of_experts<T, kGranule, kRows> : arrange_scales<T, kGranule, kRows>;
}

// Before a product that overlaps likewise, or never.
template <class T, int kGranule>
cudaError_t arrange(const BlockLinear& p, const Arranged& a, Overlap overlap, cudaStream_t stream) {
  const int64_t columns = scale_columns(p);
  const ScaleRows rows = scale_rows_of(p, kGranule);
  const bool experts = p.experts > 0;
  const auto blocks = [](int64_t work, int each) { return static_cast<unsigned>(ceil_div(work, each)); };
  const auto grid = [&](unsigned x, unsigned y) {
    return Grid{dim3(x, y, experts ? static_cast<unsigned>(p.experts) : 1), kArrangeThreads, 0, stream, 1, overlap};
  };
  if (a.largest && rows != ScaleRows::shared) {
    const auto kernel = experts ? find_largest_of_experts<T> : find_largest;
    const cudaError_t error = launch(kernel, grid(blocks(p.N, kArrangeThreads / 32), 1), p, a, columns);
    if (error != cudaSuccess) return error;
  }
  const Grid tiles = grid(blocks(a.stride, kArrangeRows), blocks(a.groups, kArrangeGroups));
  switch (rows) {
    case ScaleRows::shared: return launch(arrange_kernel<T, kGranule, ScaleRows::shared>(experts), tiles, p, a, columns);
    case ScaleRows::pieces: return launch(arrange_kernel<T, kGranule, ScaleRows::pieces>(experts), tiles, p, a, columns);
    default: return launch(arrange_kernel<T, kGranule, ScaleRows::any>(experts), tiles, p, a, columns);
  }
}

}  // namespace aoext::cuda
