// y[M, N] = row_scale · (x[M, K] · w[N, K]ᵀ) + bias by wgmma, w in blocks of bytes (packed.cuh), for tens of rows of x.
//
// swap_ab: weights are the left operand, in registers: taken apart in float32 and rounded once to x's type, as in
// packed_tiles.cuh, for 64 rows of x at once, which the tensor cores read where they lie. A block has 128 output channels, 16 a
// warp, two warpgroups; so many warps hide each other's latency.
//
// Memory. A warp copies slices of 256 k of its rows, a slice ahead. x comes through registers, a chunk of 64 k ahead, since a
// lane's codes are four neighbours, which the instruction would have as two pairs eight apart: x is laid out so, in lines that
// are swizzled as a bulk tensor copy would. Blocks of a cluster share K (packed_tiles.cuh adds up).
#pragma once

#include "cuda/kernels/packed_tiles.cuh"
#include "cuda/kernels/packed_wgmma.h"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::packed_wgmma {

using packed::each_index;
using packed_mma::kept;
using packed_mma::kWarpTile;
using packed_mma::Params;
using packed_mma::Slice;
using packed_mma::Unit;
using packed_tiles::kSlice;
using packed_tiles::kSumsPitch;
using packed_tiles::Number;
using wgmma::lines_descriptor;
using wgmma::matrix_of_lines;

constexpr int kSteps = 2, kItems = kXBytes / 16 / kThreads;  // steps of 16 k at once; 16 bytes of x of a thread in a chunk

// A thread's part of chunks of x: eight k of rows kApart apart, whose lines are swizzled alike.
struct XChunks {
  static constexpr int kApart = kThreads / 8;
  static_assert(kApart % 8 == 0);
  const char* from;
  const PackedLinear& p;
  int rows, to, k, end;  // rows from the thread's first on

  __device__ __forceinline__ XChunks(const PackedLinear& p, uint32_t shared, int64_t m0, int rows_of_tile, int first_k, int end)
      : p(p), end(end) {
    const int row = threadIdx.x / 8, eight = threadIdx.x % 8;
    k = first_k + eight * 8, rows = kept(rows_of_tile - row);
    from = static_cast<const char*>(p.x) + ((m0 + min(row, rows_of_tile - 1)) * p.K + k) * 2;
    to = kept(static_cast<int>(shared) + row * 128 + ((eight / 2 * 2 ^ row % 8) << 4) + eight % 2 * 8);
  }

  __device__ __forceinline__ bool has(int item) const { return item * kApart < rows; }

  // The next chunk, or zeros behind the last.
  __device__ __forceinline__ void load(uint4 (&v)[kItems]) {
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (has(i)) v[i] = k < end ? __ldg(reinterpret_cast<const uint4*>(from + i * kApart * 2 * p.K)) : uint4{};
    from += kChunk * 2, k += kChunk;
  }

  // Eight k as the pairs that come first in their step of 16, and those that come last.
  __device__ __forceinline__ void store(const uint4 (&v)[kItems], int stage) const {
    const int at = to + stage * kXBytes;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!has(i)) continue;
      store_shared_pair(at + i * kApart * 128, v[i].x, v[i].z);
      store_shared_pair((at ^ 16) + i * kApart * 128, v[i].y, v[i].w);
    }
  }

  // Zeros for rows that there are not, of all stages.
  __device__ __forceinline__ void clear() const {
    for (int i = 0; i < kItems; ++i)
      for (int stage = 0; stage < kXStages && !has(i); ++stage) {
        const int at = to + stage * kXBytes;
        store_shared_pair(at + i * kApart * 128, 0, 0), store_shared_pair((at ^ 16) + i * kApart * 128, 0, 0);
      }
  }

  static __device__ __forceinline__ void store_shared_pair(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(a), "r"(b) : "memory");
  }
};

// A warp's 16 output channels.
template <class T, Code kCode>
struct Weights {
  using U = Unit<kCode>;
  using Groups = packed_mma::Pairs<kCode, kWarpTile, kSlice<kCode>, Number<kCode>::kBase, 0>;

  const uint8_t* units[2];  // of rows g and g + 8
  const float2* pairs;      // of row g
  int t, pitch;

  // The left operand of two steps from kBegin on of a chunk.
  template <int kBegin>
  __device__ __forceinline__ void unpack(int chunk, const packed::Places& further, int scale_log2,
                                         uint32_t (&a)[kSteps][4]) const {
    float2 affine[2];
    each_index<kSteps>([&](auto index) {
      constexpr int kStep = decltype(index)::value, kFirst = kBegin + kStep * 16, kGroup = U::kBeside ? 16 : U::kGroup;
      if (kStep == 0 || (kFirst % kGroup == 0 && (!U::kBeside || scale_log2 == 4))) {
        const int group = U::kBeside ? (chunk * kChunk + kFirst) >> scale_log2 : (chunk * kChunk + kFirst) / kGroup;
        affine[0] = pairs[group], affine[1] = pairs[8 * pitch + group];
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float v[4];
        Number<kCode>::template four<kFirst % U::kValues>(units[h] + kFirst / U::kValues * U::kBytes, t, further, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = fmaf(v[j], affine[h].x, affine[h].y);
        a[kStep][h] = rounded_pair<T>(v[0], v[1]), a[kStep][h + 2] = rounded_pair<T>(v[2], v[3]);
      }
    });
  }
};

template <class T, Code kCode>
__global__ void __launch_bounds__(kThreads, kBlocks) packed_wgmma(const __grid_constant__ Params a) {
  extern __shared__ __align__(128) uint8_t unaligned[];
  start_next_kernel();
  constexpr Slice kOwn = kSlice<kCode>;
  using U = Unit<kCode>;
  using Own = Weights<T, kCode>;
  const PackedLinear& p = a.p;
  const int cluster = a.k_warps, rank = static_cast<int>(blockIdx.x) % cluster;
  const int64_t n0 = int64_t{blockIdx.x / static_cast<unsigned>(cluster)} * packed_tiles::kBlockN;
  const int64_t m0 = int64_t{blockIdx.y} * kBlockM;
  const int rows = static_cast<int>(min(int64_t{kBlockM}, p.M - m0));
  const int lane = kept(threadIdx.x % 32), warp = kept(threadIdx.x / 32), n = static_cast<int>(n0) + warp * kWarpTile;
  const int first_k = rank * a.steps * kOwn.k, K = static_cast<int>(p.K), end = min(K, first_k + a.steps * kOwn.k);

  // x, whose lines begin at multiples of 1024 bytes; each warp's two stages of codes and scales; pairs.
  const uint32_t begin = shared_address(unaligned), shared = (begin + 1023) & ~1023u;
  uint8_t* const memory = unaligned + (shared - begin);
  uint8_t* const own_stages = memory + kXStages * kXBytes + kept(warp * 2 * a.stage_bytes);
  const uint32_t own_shared = shared_address(own_stages);
  const packed_mma::RowCopies<kOwn, kWarpTile> codes(p, n, lane);
  const packed_mma::LaneUnits<kOwn, kWarpTile> lane_units(p, n, lane);
  const auto copy_slice = [&](int k, int stage) {
    if (k < end) {
      const uint32_t to = own_shared + stage * a.stage_bytes;
      codes.copy(to, k / kOwn.k * kOwn.bytes);
      if constexpr (U::kBeside) packed_mma::copy_scales(a, to + a.scales, k, kOwn.k, n, kWarpTile, lane, 32);
    }
    commit_copies();
  };
  codes.prefetch(first_k / kOwn.k * kOwn.bytes);
  wait_for_last_kernel();
  copy_slice(first_k, 0);
  XChunks x(p, shared, m0, rows, first_k, end);
  x.clear();
  uint4 next[kItems] = {};
  x.load(next);
  x.store(next, 0);
  x.load(next);

  Own own;
  own.t = lane % 4, own.pitch = U::kBeside ? a.pairs_pitch : Own::Groups::kPitch;
  float2* const pairs = reinterpret_cast<float2*>(memory + a.pairs) + warp * kWarpTile * own.pitch;
  own.pairs = pairs + lane / 4 * own.pitch;
  float sums[kBlockM / 2] = {};
  uint32_t fragments[2][kSteps][4];
  int stage = 0, x_stage = 0;

#pragma unroll 1
  for (int k = first_k; k < end; k += kChunk) {
    if (k % kOwn.k == 0) {
      wait_copies<0>();
      __syncwarp();
      copy_slice(k + kOwn.k, stage ^ 1);
      const uint8_t* const slice = own_stages + stage * a.stage_bytes;
      const int at = k / kOwn.k * kOwn.bytes;
      if constexpr (U::kBeside)
        Own::Groups::of_lines(pairs, own.pitch, lane, slice + a.scales, p.scale_type, kOwn.k >> a.scale_log2, kWarpTile);
      else
        Own::Groups::of_blocks(pairs, own.pitch, lane, K - k,
                               [&](int row) { return packed_mma::units_of(p, slice + row * kOwn.pitch, n + row, at); });
      lane_units.find(slice, at, own.units);
      __syncwarp();
      stage ^= 1;
    }
    const int chunk = k / kChunk % (kOwn.k / kChunk);
    const packed::Places further = Number<kCode>::places_of(chunk);
    each_index<kChunk / 16 / kSteps>([&](auto half) {
      constexpr int kHalf = decltype(half)::value;
      wgmma_wait<1>();  // for all but the other half: these fragments may be written
      own.template unpack<kHalf * kSteps * 16>(chunk, further, a.scale_log2, fragments[kHalf]);
      if constexpr (kHalf == 0) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        Wgmma<kBlockM>::multiply(T(), sums, fragments[kHalf][step],
                                 matrix_of_lines(lines_descriptor(shared + x_stage * kXBytes) + (kHalf * kSteps + step) * 2), 1);
      wgmma_commit();
    });
    x_stage = x_stage + 1 == kXStages ? 0 : x_stage + 1;
    x.store(next, x_stage);
    x.load(next);
  }
  wgmma_wait<0>();
  wait_copies<0>();
  __syncthreads();

  auto* const all = reinterpret_cast<float*>(memory);
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kBlockM / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) all[(j * 8 + 2 * t + e % 2) * kSumsPitch + warp * kWarpTile + e / 2 * 8 + g] = sums[j * 4 + e];
  packed_tiles::add_up<kThreads>(p, all, n0, m0, rows, rank, cluster);
}

}  // namespace aoext::cuda::packed_wgmma
