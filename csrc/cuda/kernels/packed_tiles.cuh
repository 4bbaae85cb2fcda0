// y[M, N] = row_scale · (x[M, K] · w[N, K]ᵀ) + bias by mma.sync, w in blocks of bytes (packed.cuh), for tens of rows of x.
//
// swap_ab: weights are the A operand (16 output channels × 16 k), x is B (16 k × 8 rows). A block has 128 output channels, 32 a
// warp, by 32 rows of x, so that a weight is taken apart once for all of them: in float32, and rounded once to x's type.
//
// Memory. A warp copies slices of 256 k of its rows, as packed_mma.cuh does, a slice ahead; the block copies x by chunks of 64 k,
// kXStages deep. Where there are too few tiles for all multiprocessors, the blocks of a cluster share K: each has its sums in
// shared memory in the end, and adds up some rows of all.
#pragma once

#include "cuda/kernels/packed.cuh"
#include "cuda/kernels/packed_pairs.cuh"
#include "cuda/kernels/packed_tiles.h"

namespace aoext::cuda::packed_tiles {

using packed::each_index;
using packed_mma::Params;
using packed_mma::Slice;
using packed_mma::Unit;

constexpr int kRowTiles = kWarpN / 16, kColumns = kBlockM / 8;

template <Code kCode>
constexpr Slice kSlice = packed_mma::slice_of(kCode, false);

// Codes as float32, chunk by chunk of a slice.
template <Code kCode>
struct Number : packed::Number<kCode> {
  using packed::Number<kCode>::kCodes;
  using packed::Number<kCode>::kSigned;
  using U = Unit<kCode>;

  // Whether all chunks of a block lie like the first, further on; digits are found by how many.
  static constexpr bool is_even() {
    for (const Bits& bits : kCodes.planes)
      for (int k = 0; k < U::kValues; ++k)
        if (bits.bits > 0 && !bits.are_digits &&
            (bits.byte_of(k) - bits.byte_of(k / kChunk * kChunk) != bits.byte_of(k % kChunk) - bits.byte_of(0) ||
             bits.shift_of(k) - bits.shift_of(k / kChunk * kChunk) != bits.shift_of(k % kChunk) - bits.shift_of(0)))
          return false;
    return true;
  }
  static_assert(is_even());

  template <int kPlane>
  static __device__ __forceinline__ packed::Place place_of(int chunk) {
    constexpr Bits kBits = layout_of(kCode).code.planes[kPlane];
    if constexpr (kBits.bits == 0) return {};
    if constexpr (kBits.are_digits) return {chunk % (U::kValues / kChunk) * kChunk};
    return {kBits.byte_of(chunk * kChunk) - kBits.byte_of(0), kBits.shift_of(chunk * kChunk) - kBits.shift_of(0)};
  }
  // How much further on than the first a chunk of a slice lies.
  static __device__ __forceinline__ packed::Places places_of(int chunk) {
    if constexpr (U::kValues < kChunk) {
      const packed::Place units{chunk * (kChunk / U::kValues * U::kBytes)};
      return {{units, units, units}};
    }
    return {{place_of<0>(chunk), place_of<1>(chunk), place_of<2>(chunk)}};
  }

  // The lane's four in the step of 16 k from kFirst on of a unit.
  template <int kFirst>
  static __device__ __forceinline__ void four(const uint8_t* unit, int t, const packed::Places& further, float (&v)[4]) {
    uint32_t codes = packed::four_of<kCodes, kFirst, U::kAlign>(unit, t, further);
    if constexpr (U::kLayout.looks_up) codes = packed::look_up(codes);
    if constexpr (kSigned) codes ^= 0x80808080u;
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = packed::Number<kCode>::of(codes, j);
  }
};

// A block's rows of x, 64 k at a time; zeros where it has no more.
struct XCopies {
  static constexpr int kRows = kThreads / 8, kTurns = kBlockM / kRows;
  const char* from;
  int64_t row_bytes;
  uint32_t to;
  int k, K, rows;  // left from the thread's first on

  __device__ __forceinline__ XCopies(const PackedLinear& p, uint32_t shared, int64_t m0, int rows_of_tile, int first_k) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    row_bytes = p.K * 2, K = static_cast<int>(p.K), k = first_k + chunk * 8, rows = rows_of_tile - row;
    from = static_cast<const char*>(p.x) + ((m0 + row) * p.K + k) * 2;
    to = shared + row * kXPitch + chunk * 16;
  }

  __device__ __forceinline__ void copy(int stage) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const bool inside = i * kRows < rows && k < K;
      copy16(to + stage * (kBlockM * kXPitch) + i * kRows * kXPitch, inside ? from + i * kRows * row_bytes : from, inside);
    }
    k += kChunk, from += kChunk * 2;
  }
};

// A warp's 32 output channels by the rows of a tile.
template <class T, Code kCode>
struct Warp {
  using U = Unit<kCode>;
  using Groups = packed_mma::Pairs<kCode, kWarpN, kSlice<kCode>, Number<kCode>::kBase, 0>;

  float sums[kRowTiles][kColumns][4] = {};
  float2 affine[2 * kRowTiles];
  const uint8_t* units[2 * kRowTiles];  // of rows g, g + 8, …
  const float2* pairs;                  // of row g
  int t, pitch;

  // The pairs of the step's group, where another one may begin.
  template <int kFirst>
  __device__ __forceinline__ void read_pairs(int chunk, int scale_log2) {
    constexpr int kGroup = U::kBeside ? 16 : U::kGroup;
    if (kFirst % kGroup != 0 || (U::kBeside && kFirst % 32 != 0 && scale_log2 != 4)) return;
    const int group = U::kBeside ? (chunk * kChunk + kFirst) >> scale_log2 : chunk * kChunk / kGroup + kFirst / kGroup;
#pragma unroll
    for (int h = 0; h < 2 * kRowTiles; ++h) affine[h] = pairs[h * 8 * pitch + group];
  }

  // 16 k from kFirst of a chunk on; x is the lane's of column 0.
  template <int kFirst>
  __device__ __forceinline__ void step(const uint8_t* x, int chunk, const packed::Places& further, int scale_log2) {
    read_pairs<kFirst>(chunk, scale_log2);
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int h = 0; h < 2 * kRowTiles; ++h) {
      float v[4];
      Number<kCode>::template four<kFirst % U::kValues>(units[h] + kFirst / U::kValues * U::kBytes, t, further, v);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = fmaf(v[j], affine[h].x, affine[h].y);
      a[h / 2][h % 2] = rounded_pair<T>(v[0], v[1]), a[h / 2][h % 2 + 2] = rounded_pair<T>(v[2], v[3]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint2 b = *reinterpret_cast<const uint2*>(x + c * 8 * kXPitch + kFirst * 2);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) mma<T>(sums[r][c], a[r], b.x, b.y);
    }
  }
};

// No block ends while others read its memory. It orders nothing: what does so waits for all that has been stored.
__device__ __forceinline__ void wait_for_readers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// From a tile's row of sums in shared memory to the next.
constexpr int kSumsPitch = kBlockN + 4;

// Adds up what the blocks of a cluster have of a tile, [rows][kSumsPitch] in shared memory, and stores it.
template <int kThreads>
__device__ __forceinline__ void add_up(const PackedLinear& p, const float* memory, int64_t n0, int64_t m0, int rows, int rank,
                                       int cluster) {
  if (cluster > 1)
    cluster_sync();
  else
    __syncthreads();
  const float of_all = packed::has_scale_of_all(p) ? *static_cast<const float*>(p.scale) : 1.0f;
  const uint32_t shared = shared_address(memory);
  constexpr int kFours = kBlockN / 4;
  for (int item = threadIdx.x + rank * kThreads; item < rows * kFours; item += kThreads * cluster) {
    const int row = item / kFours, four = item % kFours;
    const uint32_t at = shared + (row * kSumsPitch + four * 4) * 4;
    float v[4] = {};
#pragma unroll 1
    for (int block = 0; block < cluster; ++block) {
      const float4 own = cluster > 1 ? load_remote(remote_address(at, block))
                                     : *reinterpret_cast<const float4*>(memory + row * kSumsPitch + four * 4);
      v[0] += own.x, v[1] += own.y, v[2] += own.z, v[3] += own.w;
    }
    const int64_t n = n0 + four * 4, m = m0 + row;
    const float of_row = p.row_scale ? of_all * p.row_scale[m] : of_all;
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = fmaf(v[j], of_row, p.bias && n + j < p.N ? load_float(p.bias, n + j, p.bias_type) : 0.0f);
    if (p.N % 4 == 0 && n < p.N) {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.y) + m * p.N + n) =
          p.output == Element::fp16 ? uint2{rounded_pair<__half>(v[0], v[1]), rounded_pair<__half>(v[2], v[3])}
                                    : uint2{rounded_pair<__nv_bfloat16>(v[0], v[1]), rounded_pair<__nv_bfloat16>(v[2], v[3])};
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (n + j < p.N) packed::store(p, m * p.N + n + j, v[j]);
  }
  if (cluster > 1) wait_for_readers();
}

__device__ __forceinline__ void put(float* memory, const float (&sums)[kRowTiles][kColumns][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        memory[(c * 8 + 2 * t + e % 2) * kSumsPitch + warp * kWarpN + r * 16 + e / 2 * 8 + g] = sums[r][c][e];
}

// Rows [m0, m0 + rows) of x by output channels from n0 on, of K the block's share of its cluster's.
template <class T, Code kCode>
__device__ __forceinline__ void compute(const Params& a, int64_t n0, int64_t m0, int rows, int rank, int cluster) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr Slice kOwn = kSlice<kCode>;
  constexpr int kWBytes = kBlockN * kOwn.pitch;
  using U = Unit<kCode>;
  using Own = Warp<T, kCode>;
  const PackedLinear& p = a.p;
  const int lane = packed_mma::kept(threadIdx.x % 32), warp = packed_mma::kept(threadIdx.x / 32);
  const int n = static_cast<int>(n0) + warp * kWarpN;
  const int first_k = rank * a.steps * kOwn.k, K = static_cast<int>(p.K), end = min(K, first_k + a.steps * kOwn.k);

  // Two stages of codes and scales, then x, then pairs.
  const uint32_t shared = shared_address(memory);
  const packed_mma::RowCopies<kOwn, kWarpN> codes(p, n, lane);
  const packed_mma::LaneUnits<kOwn, kWarpN> lane_units(p, n, lane);
  XCopies x(p, shared + 2 * a.stage_bytes, m0, rows, first_k);
  const auto copy_slice = [&](int k, int stage) {
    if (k < end) {
      const uint32_t to = shared + stage * a.stage_bytes;
      codes.copy(to + warp * kWarpN * kOwn.pitch, k / kOwn.k * kOwn.bytes);
      if constexpr (U::kBeside) packed_mma::copy_scales(a, to + kWBytes, k, kOwn.k, n0, kBlockN, threadIdx.x, kThreads);
    }
  };
  codes.prefetch(first_k / kOwn.k * kOwn.bytes);
  wait_for_last_kernel();
  copy_slice(first_k, 0);
#pragma unroll
  for (int i = 0; i < kXStages - 1; ++i) x.copy(i), commit_copies();

  Own own;
  own.t = lane % 4, own.pitch = U::kBeside ? a.pairs_pitch : Own::Groups::kPitch;
  float2* const pairs = reinterpret_cast<float2*>(memory + a.pairs) + warp * kWarpN * own.pitch;
  own.pairs = pairs + lane / 4 * own.pitch;
  const uint8_t* const x_lane = memory + packed_mma::kept(2 * a.stage_bytes + lane / 4 * kXPitch + own.t * 8);
  constexpr int kChunks = kOwn.k / kChunk;
  static_assert(kChunks == kXStages);
  int stage = 0;
#pragma unroll 1
  for (int k = first_k; k < end; k += kChunk) {
    const int chunk = k / kChunk % kChunks;
    wait_copies<kXStages - 2>();
    __syncthreads();
    if (chunk == 0) copy_slice(k + kOwn.k, stage ^ 1);
    x.copy((chunk + kXStages - 1) % kXStages);
    commit_copies();
    if (chunk == 0) {
      const uint8_t* const slice = memory + stage * a.stage_bytes;
      const int at = k / kOwn.k * kOwn.bytes;
      const auto units = [&](int row) {
        return packed_mma::units_of(p, slice + (warp * kWarpN + row) * kOwn.pitch, n + row, at);
      };
      if constexpr (U::kBeside)
        Own::Groups::of_lines(pairs, own.pitch, lane, slice + kWBytes + warp * kWarpN * bytes_of(p.scale_type), p.scale_type,
                              kOwn.k >> a.scale_log2, kBlockN);
      else
        Own::Groups::of_blocks(pairs, own.pitch, lane, K - k, units);
      lane_units.find(slice + warp * kWarpN * kOwn.pitch, at, own.units);
      __syncwarp();
      stage ^= 1;
    }
    const uint8_t* const from = x_lane + chunk * (kBlockM * kXPitch);
    const packed::Places further = Number<kCode>::places_of(chunk);
    each_index<kChunk / 16>([&](auto i) { own.template step<decltype(i)::value * 16>(from, chunk, further, a.scale_log2); });
  }
  wait_copies<0>();
  __syncthreads();
  put(reinterpret_cast<float*>(memory), own.sums);
  add_up<kThreads>(p, reinterpret_cast<float*>(memory), n0, m0, rows, rank, cluster);
}

template <class T, Code kCode>
__global__ void __launch_bounds__(kThreads, kBlocks) packed_tiles(const __grid_constant__ Params a) {
  start_next_kernel();
  const PackedLinear& p = a.p;
  const int cluster = a.k_warps, rank = static_cast<int>(blockIdx.x) % cluster;
  const int64_t n0 = int64_t{blockIdx.x / static_cast<unsigned>(cluster)} * kBlockN;
  const int64_t m0 = int64_t{blockIdx.y} * (kBlockM);
  compute<T, kCode>(a, n0, m0, static_cast<int>(min(int64_t{kBlockM}, p.M - m0)), rank, cluster);
}

// A block's place along y is its tile of rows, of one expert's.
template <class T, Code kCode>
__global__ void __launch_bounds__(kThreads, kBlocks) packed_tiles_of_experts(const __grid_constant__ Params a) {
  start_next_kernel();
  wait_for_last_kernel();
  const PackedLinear& p = a.p;
  const int experts = static_cast<int>(p.experts);
  const ExpertRows rows = rows_of_tile(p.ends, experts, static_cast<int>(p.M), kBlockM, blockIdx.y);
  const int64_t n0 = int64_t{blockIdx.x} * kBlockN;
  if (rows.begin == rows.end) return;
  if (rows.expert == experts) return packed_mma::clear_rows(p, rows, n0, kBlockN);
  Params own = a;
  own.p = of_expert(p, rows.expert);
  compute<T, kCode>(own, n0, rows.begin, rows.end - rows.begin, 0, 1);
}

}  // namespace aoext::cuda::packed_tiles
