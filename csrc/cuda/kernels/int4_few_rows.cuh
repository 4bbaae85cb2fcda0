// What int4_ring.cuh and int4_decode.cuh share: a launch's parameters, how they read an x of 8 bits, and how an output is
// stored.
#pragma once

#include <cstdint>

#include "cuda/kernels/eight_bit.cuh"
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
  int bias_type;     // Element
  int code;          // Element, of an x of 8 bits: int8 or e4m3
  bool reads_codes;  // whether it is one

  // The problem, where `sub` k of a kernel's share a scale.
  void set(const Int4Linear& p, int sub) {
    K = p.K, N = p.N, x = p.x, weight = p.weight, scale = p.scale, zero_point = p.zero_point, bias = p.bias;
    row_scale = p.row_scale, y = p.y, bias_type = static_cast<int>(p.bias_type);
    code = static_cast<int>(p.code), reads_codes = p.code != p.type;
    sub_per_group = static_cast<int>(p.group_size / sub);
    group_magic = static_cast<uint32_t>(ceil_div(int64_t{1} << 32, sub_per_group));
    scale_groups = static_cast<int>(p.K / p.group_size);
  }
};

// x as it is staged: eight k in 16 bytes of numbers of type T. kCodes: whether x may be of 8 bits.
template <class T, bool kCodes>
struct StagedNumbers {
  const Int4FewRows& p;

  __device__ __forceinline__ bool reads_codes() const { return kCodes && p.reads_codes; }

  // Eight k from element `i` of x on, as they lie there.
  __device__ __forceinline__ uint4 load(int64_t i) const {
    if (!reads_codes()) return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + i);
    const uint2 codes = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(p.x) + i);
    return {codes.x, codes.y, 0, 0};
  }

  // The same to shared memory; zeros, where they are not inside.
  __device__ __forceinline__ void copy(uint32_t to, int64_t i, bool inside) const {
    if (reads_codes())
      cuda::copy<8>(to, static_cast<const uint8_t*>(p.x) + i, inside);
    else
      copy16_cached(to, static_cast<const uint16_t*>(p.x) + i, inside);
  }

  // What load or copy gave, as numbers.
  __device__ __forceinline__ void to_numbers(uint4 (&v)[4]) const {
    if (!reads_codes()) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool integers = p.code == static_cast<int>(Element::int8);
      v[j] = integers ? numbers_of<Element::int8>(v[j]) : numbers_of<Element::e4m3>(v[j]);
    }
  }

 private:
  template <Element kCode>
  static __device__ __forceinline__ uint4 numbers_of(const uint4& codes) {
    const uint2 low = widened<T, kCode>(codes.x), high = widened<T, kCode>(codes.y);
    return {low.x, low.y, high.x, high.y};
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
