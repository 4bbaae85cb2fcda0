// y[M, N] = row_scale · (x[M, K] · w[N, K]ᵀ) + bias by mma.sync, w in blocks of bytes (packed.cuh), for few rows of x.
//
// swap_ab: codes are the A operand (16 output channels × 16 k), x is B (16 k × 8 rows). The tensor cores multiply codes, which
// 16 bits hold exactly, and float32 the sums of each group by its scale: no weight is rounded. Zeros meet sums of x, for which a
// second mma has ones in place of codes. So a float32 x is its bfloat16 limbs, as rows of their own.
//
// A block computes BLOCK_N output channels × 8 rows of limbs, or 16; its warps share BLOCK_N and split the k of a stage into
// slices of 256, or 512 where they are few bytes. cp.async copies each row's bytes as they lie, from the multiple of 16 before
// them on, two stages deep, so that rows may start anywhere; the rows of a slice are an odd number of 16 bytes apart, so that the
// eight of an mma lie in different banks. Each scale of a slice is made once, by one lane, for all of them (packed_pairs.cuh).
#pragma once

#include "cuda/kernels/packed.cuh"
#include "cuda/kernels/packed_mma.h"
#include "cuda/kernels/packed_pairs.cuh"

namespace aoext::cuda::packed_mma {

using packed::each_index;
using packed::Operand;

template <Code kCode>
constexpr Slice kSlice = slice_of(kCode, true);

// A warp's sums, and a slice of k to add to them.
template <class T, Code kCode, int kColumns>
struct Warp {
  static constexpr Slice kOwn = kSlice<kCode>;
  using U = Unit<kCode>;
  using Op = Operand<T, kCode>;
  using Groups = Pairs<kCode, kWarpTile, kOwn, Op::kBase, Op::kUp>;
  static constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3c003c00u : 0x3f803f80u;

  float y[kColumns][4] = {}, sums[kColumns][4] = {}, sums_x[kColumns][4] = {};
  const uint8_t* units[2];  // of rows g and g + 8
  const uint8_t* x;
  float2* pairs;  // of the warp
  const float2 *pair, *pair8;
  int lane, pitch;

  __device__ __forceinline__ Warp(float2* pairs, int pitch, int lane) : pairs(pairs), lane(lane), pitch(pitch) {
    pair = pairs + lane / 4 * pitch, pair8 = pair + 8 * pitch;
  }

  // 16 k from kFirst on of units so many further, whose x starts k behind that of the slice.
  template <int kFirst>
  __device__ __forceinline__ void step(int k, int unit = 0) {
    const uint2 g = Op::template pairs<kFirst>(units[0] + unit * U::kBytes, lane % 4),
                g8 = Op::template pairs<kFirst>(units[1] + unit * U::kBytes, lane % 4);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint2 b = *reinterpret_cast<const uint2*>(x + c * 8 * kOwn.x_pitch + (k + kFirst) * 2);
      mma<T>(sums[c], {g.x, g8.x, g.y, g8.y}, b.x, b.y);
      if constexpr (U::kHasZero) mma<T>(sums_x[c], {kOnes, kOnes, kOnes, kOnes}, b.x, b.y);
    }
  }

  // 32 k of a unit.
  __device__ __forceinline__ void step_of_eight(int k, int unit) {
    const uint4 g = Op::eight(units[0] + unit * U::kBytes, lane % 4), g8 = Op::eight(units[1] + unit * U::kBytes, lane % 4);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + lane % 4 * 8 + c * 8 * kOwn.x_pitch + k * 2);
      mma<T>(sums[c], {g.x, g8.x, g.y, g8.y}, b.x, b.y);
      mma<T>(sums[c], {g.z, g8.z, g.w, g8.w}, b.z, b.w);
      mma<T>(sums_x[c], {kOnes, kOnes, kOnes, kOnes}, b.x, b.y);
      mma<T>(sums_x[c], {kOnes, kOnes, kOnes, kOnes}, b.z, b.w);
    }
  }

  // Scales the sums of a group of the slice.
  __device__ __forceinline__ void scale(int group) {
    const float2 a[2] = {pair[group], pair8[group]};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y[c][i] = fmaf(a[i / 2].x, sums[c][i], y[c][i]);
        if constexpr (U::kHasZero) y[c][i] = fmaf(a[i / 2].y, sums_x[c][i % 2], y[c][i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[c][i] = sums_x[c][i] = 0;
    }
  }

  // A unit that is a block.
  __device__ __forceinline__ void add_block(int k, int group) {
    each_index<U::kGroups>([&](auto one) {
      constexpr int kFirst = decltype(one)::value * U::kGroup;
      each_index<U::kGroup / 16>([&](auto i) { step<kFirst + decltype(i)::value * 16>(k); });
      scale(group + decltype(one)::value);
    });
  }

  // `left` k of a slice whose scales lie beside the codes, one for each kScaleK. What lies behind K is zeros.
  template <int kScaleK>
  __device__ __forceinline__ void add_beside(int left) {
    constexpr int kAtOnce = kScaleK < 32 ? 32 : kScaleK;
#pragma unroll(kScaleK < 128 ? 4 : 1)
    for (int k = 0; k < left; k += kAtOnce) {
#pragma unroll
      for (int unit = 0; unit < kAtOnce / 32; ++unit) {
        if constexpr (Op::kEight && kScaleK >= 32) {
          step_of_eight(k + unit * 32, unit);
        } else {
          step<0>(k + unit * 32, unit);
          if (kScaleK < 32) scale(k / 16);
          step<16>(k + unit * 32, unit);
        }
      }
      scale(k / kScaleK + (kScaleK < 32));
      units[0] += kAtOnce / 32 * U::kBytes, units[1] += kAtOnce / 32 * U::kBytes;
    }
  }

  // A slice of `left` k, whose units begin where `units_of_row` says, too.
  template <class UnitsOfRow>
  __device__ __forceinline__ void add(const Params& a, const uint8_t* scales, int left, int block_n,
                                      const UnitsOfRow& units_of_row) {
    if constexpr (U::kBeside)
      Groups::of_lines(pairs, pitch, lane, scales, a.p.scale_type, kOwn.k >> a.scale_log2, block_n);
    else
      Groups::of_blocks(pairs, pitch, lane, left, units_of_row);
    __syncwarp();
    if constexpr (U::kBeside) {
      switch (a.scale_k) {
        case 16: return add_beside<16>(left);
        case 32: return add_beside<32>(left);
        default: return add_beside<128>(left);
      }
    } else if constexpr (U::kValues == kOwn.k) {
      add_block(0, 0);
    } else {
#pragma unroll(U::kValues == 256 ? 1 : 4)
      for (int i = 0; i < left; i += U::kValues) {
        add_block(i, i / U::kGroup);
        units[0] += U::kBytes, units[1] += U::kBytes;
      }
    }
  }
};

// Adds up what the warps along K have of each limb, and stores it.
template <int kColumns>
__device__ __forceinline__ void store(const Params& a, const PackedLinear& p, const float (&y)[kColumns][4], float* memory,
                                      int64_t n0, int64_t m0, int rows, int block_n) {
  constexpr int kRows = kColumns * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp / a.warps_n;
  const int pitch = block_n + 4, g = lane / 4, t = lane % 4;
  float* const own = memory + slice * kRows * pitch + warp % a.warps_n * kWarpTile;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) own[(c * 8 + 2 * t + i % 2) * pitch + i / 2 * 8 + g] = y[c][i];
  __syncthreads();
  const float of_all = packed::has_scale_of_all(p) ? *static_cast<const float*>(p.scale) : 1.0f;
  for (int i = threadIdx.x; i < rows * block_n; i += blockDim.x) {
    const int row = i / block_n, channel = i - row * block_n;
    const int64_t n = n0 + channel, m = m0 + row;
    if (n >= p.N) continue;
    float sum = 0;
    for (int limb = p.limbs - 1; limb >= 0; --limb)
#pragma unroll 4
      for (int s = 0; s < a.k_warps; ++s) sum += memory[(s * kRows + row * p.limbs + limb) * pitch + channel];
    sum *= of_all;
    if (p.row_scale) sum *= p.row_scale[m];
    if (p.bias) sum += load_float(p.bias, n, p.bias_type);
    packed::store(p, m * p.N + n, sum);
  }
}

// Rows [m0, m0 + rows) of x by output channels from n0 on.
template <class T, Code kCode, int kColumns>
__device__ __forceinline__ void compute(const Params& a, int64_t n0, int64_t m0, int rows) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr Slice kOwn = kSlice<kCode>;
  const PackedLinear& p = a.p;
  const int warps_n = a.warps_n, block_n = warps_n * kWarpTile, limb_rows = rows * p.limbs, K = static_cast<int>(p.K);
  const int lane = kept(threadIdx.x % 32), slice = threadIdx.x / 32 / warps_n, warp_n = threadIdx.x / 32 - slice * warps_n;
  const int n = static_cast<int>(n0) + warp_n * kWarpTile, step = kOwn.k * a.k_warps, first = slice * kOwn.k;
  const int step_bytes = kOwn.bytes * a.k_warps;

  const RowCopies<kOwn, kWarpTile> codes(p, n, lane);
  const LaneUnits<kOwn, kWarpTile> units(p, n, lane);
  const int own = kept(slice * a.slice_bytes), rows_at = kept(warp_n * kWarpTile * kOwn.pitch);  // the warp's in a stage
  const int x_at = kept(block_n * kOwn.pitch), x_to = kept(x_at + lane * 16);
  const uint32_t shared = shared_address(memory);
  const int64_t row_bytes = p.K * 2;
  const char* const x_begin = static_cast<const char*>(p.x) + (m0 * p.limbs * p.K + lane * 8) * 2;
  const auto copy = [&](int k, int at, int stage) {
    if (k < K) {
      const uint32_t to = shared + stage;
      codes.copy(to + rows_at, at);
      const char* const from = x_begin + int64_t{k} * 2;
#pragma unroll 1
      for (int m = warp_n; m < limb_rows; m += warps_n)
#pragma unroll
        for (int i = 0; i < kOwn.k; i += 256) {
          const bool inside = k + i + lane * 8 < K;
          copy16(to + x_to + m * kOwn.x_pitch + i * 2, inside ? from + m * row_bytes + i * 2 : p.x, inside);
        }
      if constexpr (Unit<kCode>::kBeside) copy_scales(a, to + a.scales, k, kOwn.k, n0, block_n, warp_n * 32 + lane, warps_n * 32);
    }
    commit_copies();
  };
  // Waits for the warps that share a stage.
  const auto synchronise = [&] {
    if (warps_n > 1)
      __syncthreads();
    else
      __syncwarp();
  };
  int at = kept(kOwn.bytes * slice);
  if (first < K) codes.prefetch(at);
  wait_for_last_kernel();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copy(first + i * step, at + i * step_bytes, own + i * a.stage_bytes);

  const int pitch = Unit<kCode>::kBeside ? a.pairs_pitch : Warp<T, kCode, kColumns>::Groups::kPitch;
  Warp<T, kCode, kColumns> sums(reinterpret_cast<float2*>(memory + a.pairs) + threadIdx.x / 32 * kWarpTile * pitch, pitch, lane);
  const int x_row = kept(x_at + (kColumns == 1 ? min(lane / 4, limb_rows - 1) : lane / 4) * kOwn.x_pitch + lane % 4 * 8);
  const int own_line = kept(a.scales + warp_n * kWarpTile * bytes_of(p.scale_type));
  int stage = own;
#pragma unroll 1
  for (int k = first; k < K + first; k += step, at += step_bytes) {
    wait_copies<kStages - 1>();
    synchronise();
    if (k < K) {
      const uint8_t* const rows = memory + stage + rows_at;
      units.find(rows, at, sums.units);
      sums.x = memory + stage + x_row;
      sums.add(a, memory + stage + own_line, min(K - k, kOwn.k), block_n,
               [&](int row) { return units_of(p, rows + row * kOwn.pitch, n + row, at); });
    }
    synchronise();
    copy(k + kStages * step, at + kStages * step_bytes, stage);
    stage = stage == own ? own + a.stage_bytes : own;
  }
  wait_copies<0>();
  store(a, p, sums.y, reinterpret_cast<float*>(memory), n0, m0, rows, block_n);
}

// Blocks of kMostThreads that a multiprocessor's registers are shared by: as many as spill nothing.
constexpr int kBlocks = 2;

template <class T, Code kCode, int kColumns>
__global__ void __launch_bounds__(kMostThreads, kBlocks) packed_mma(const __grid_constant__ Params a) {
  start_next_kernel();
  const int64_t m0 = int64_t{blockIdx.y} * a.rows;
  compute<T, kCode, kColumns>(a, int64_t{blockIdx.x} * a.warps_n * kWarpTile, m0,
                              static_cast<int>(min(int64_t{a.rows}, a.p.M - m0)));
}

// A block's place along y is its tile of rows, of one expert's.
template <class T, Code kCode>
__global__ void __launch_bounds__(kMostThreads, kBlocks) packed_mma_of_experts(const __grid_constant__ Params a) {
  start_next_kernel();
  wait_for_last_kernel();
  const PackedLinear& p = a.p;
  const int experts = static_cast<int>(p.experts), block_n = a.warps_n * kWarpTile;
  const ExpertRows rows = rows_of_tile(p.ends, experts, static_cast<int>(p.M), a.rows, blockIdx.y);
  const int64_t n0 = int64_t{blockIdx.x} * block_n;
  if (rows.begin == rows.end) return;
  if (rows.expert == experts) return clear_rows(p, rows, n0, block_n);
  Params own = a;
  own.p = of_expert(p, rows.expert);
  compute<T, kCode, 1>(own, n0, rows.begin, rows.end - rows.begin);
}

}  // namespace aoext::cuda::packed_mma
