// What int4_ring.cuh and int4_decode.cuh share: a launch's parameters, and how an output is stored.
#pragma once

#include <cstdint>

#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/int4.h"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// What a launch needs; every division in the kernels is by one of these, or a multiplication by its magic number.
struct Int4FewRows {
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
  int tile_groups;       // ceil(N / output channels of a block)
  int k_tiles;           // ceil(K / 128)
  int split_k_tiles;     // of the k-split of a block in its cluster
  int chunk_k_tiles;     // k-tiles whose x is in shared memory at a time
  int chunks;            // of a k-split
  int warp_stages;       // of a warp in a chunk
  int buffer_stride;     // words to the second buffer of partial sums, 0 where a block has one group of tiles
  int cluster_log2;
  int bias_type;  // Element

  // The problem, where `sub` k of a kernel's share a scale.
  void set(const Int4Linear& p, int sub) {
    K = p.K, N = p.N, x = p.x, weight = p.weight, scale = p.scale, zero_point = p.zero_point, bias = p.bias;
    row_scale = p.row_scale, y = p.y, bias_type = static_cast<int>(p.bias_type);
    sub_per_group = static_cast<int>(p.group_size / sub);
    group_magic = static_cast<uint32_t>(ceil_div(int64_t{1} << 32, sub_per_group));
    scale_groups = static_cast<int>(p.K / p.group_size);
  }
};

// The sum of output channel lane % 16 of a tile of the block.
template <class T>
__device__ __forceinline__ void store_int4_output(const Int4FewRows& p, const Position& at, int turn, int tile, int m,
                                                  float sum) {
  constexpr int kTileN = SplitKReduction<float>::kTileN;
  const int64_t n = (static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * at.tiles + tile) * kTileN + (at.lane & 15);
  if (n >= p.N) return;
  if (p.row_scale) sum *= p.row_scale[m];
  if (p.bias) sum += load_float(p.bias, n, static_cast<Element>(p.bias_type));
  static_cast<T*>(p.y)[m * p.N + n] = static_cast<T>(sum);
}

}  // namespace aoext::cuda
