// Scales of blocks as kernels for many rows of x want them: [K / granule, N] of x's type, whatever their block and type, by a
// kernel before the product. For fp16, whose range is shorter than that of the scales, they are relative to the largest scale of
// an output channel, which becomes part of that channel's factor.
#pragma once

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda {

// The output of arrange_scales, for the product.
struct Arranged {
  void* scales;             // [K / granule, stride] of x's type
  float *largest, *factor;  // [N]; `largest` is null where scales are not relative to it; the factor multiplies sums
  Table16* table;
  int64_t groups, stride;  // rows, and their length: N rounded up to 16 bytes
};

constexpr int kArrangeRows = 64, kArrangeGroups = 32, kArrangeThreads = 256;

// The row of scales of output channel n.
__device__ __forceinline__ int64_t scale_row(const BlockLinear& p, int64_t n) {
  return p.block_n == 1 ? n : static_cast<uint32_t>(n) / static_cast<uint32_t>(min(p.block_n, p.N));
}

// The largest finite scale of each output channel.
static __global__ void __launch_bounds__(kArrangeThreads)
    find_largest(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  const int64_t n = int64_t{blockIdx.x} * (kArrangeThreads / 32) + threadIdx.x / 32;
  if (n >= p.N) return;
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < columns; i += 32) {
    const float scale = load_block_scale(p, scale_row(p, n) * columns + i);
    const uint32_t magnitude = __float_as_uint(scale) & 0x7fffffff;
    largest = max(largest, magnitude < 0x7f800000 ? magnitude : 0);
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) a.largest[n] = largest == 0 ? 1.0f : __uint_as_float(largest);
}

// Tiles of 64 output channels by 32 granules.
template <class T, int kGranule>
__global__ void __launch_bounds__(kArrangeThreads)
    arrange_scales(const __grid_constant__ BlockLinear p, const Arranged a, int64_t columns) {
  wait_for_last_kernel();
  start_next_kernel();
  __shared__ float tile[kArrangeGroups][kArrangeRows + 1];
  const int64_t n0 = int64_t{blockIdx.x} * kArrangeRows, g0 = int64_t{blockIdx.y} * kArrangeGroups;
  if (blockIdx.y == 0 && threadIdx.x < kArrangeRows && n0 + threadIdx.x < p.N) {
    const float table = p.table ? table_factor<T>(p.table) : 1.0f;
    const float largest = a.largest ? a.largest[n0 + threadIdx.x] : 1.0f;
    a.factor[n0 + threadIdx.x] = largest * (global_scale(p) / table);
    if (p.table && blockIdx.x == 0 && threadIdx.x == 0) a.table->template read<T>(p.table, table);
  }
  // A thread has one granule of several rows, and asks for all before it needs the first.
  constexpr int kEach = kArrangeRows * kArrangeGroups / kArrangeThreads, kStep = kArrangeThreads / kArrangeGroups;
  const int group = threadIdx.x % kArrangeGroups, first = threadIdx.x / kArrangeGroups;
  const int64_t k = (g0 + group) * kGranule;
  const int64_t column = static_cast<uint32_t>(k) / static_cast<uint32_t>(min(p.block_k, p.K));
  uint32_t raw[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t n = n0 + first + i * kStep;
    const bool inside = n < p.N && k < p.K;
    raw[i] = inside ? load_scale_bits(p.block_scale, scale_row(p, n) * columns + column, p.block_scale_type) : 0;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = first + i * kStep;
    const int64_t n = n0 + row;
    float scale = 0;
    if (n < p.N && k < p.K) {
      scale = scale_of_bits(raw[i], p.block_scale_type);
      if (a.largest) scale /= a.largest[n];
    }
    tile[group][row] = scale;
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < kArrangeRows * kArrangeGroups; i += kArrangeThreads) {
    const int row = i % kArrangeRows, group = i / kArrangeRows;
    if (n0 + row < a.stride && g0 + group < a.groups)
      static_cast<T*>(a.scales)[(g0 + group) * a.stride + n0 + row] = rounded<T>(tile[group][row]);
  }
}

// Before a product that overlaps likewise, or never.
template <class T, int kGranule>
cudaError_t arrange(const BlockLinear& p, const Arranged& a, Overlap overlap, cudaStream_t stream) {
  const int64_t columns = scale_columns(p);
  const auto blocks = [](int64_t work, int each) { return static_cast<unsigned>(ceil_div(work, each)); };
  const auto grid = [&](dim3 all) { return Grid{all, kArrangeThreads, 0, stream, 1, overlap}; };
  if (a.largest) {
    const cudaError_t error = launch(find_largest, grid(blocks(p.N, kArrangeThreads / 32)), p, a, columns);
    if (error != cudaSuccess) return error;
  }
  const dim3 tiles(blocks(a.stride, kArrangeRows), blocks(a.groups, kArrangeGroups));
  return launch(arrange_scales<T, kGranule>, grid(tiles), p, a, columns);
}

}  // namespace aoext::cuda
