// y[N] = row_scale · (x[K] · w[N, K]ᵀ) + bias by mma.sync, w in blocks of bytes (packed.cuh), for one row of x.
//
// Codes are the A operand (16 output channels × 16 k), as in packed_mma.cuh. One row of x wants one of the eight columns of an
// mma, so each of eight runs of K has its own: B is zero but in the column of the step's run, whose lanes keep what they have of
// x. So the sums of eight runs are apart after 256 k, or so, in registers that every lane has its share of: it scales four runs
// of one output channel, whose scales it alone makes. Sums of x, which zeros and the base of codes meet, are made once a block,
// as x comes to shared memory.
//
// Codes come to shared memory as in packed_mma.cuh.
#pragma once

#include "cuda/kernels/packed.cuh"
#include "cuda/kernels/packed_decode.h"
#include "cuda/kernels/packed_decode_x.cuh"
#include "cuda/kernels/packed_pairs.cuh"

namespace aoext::cuda::packed_decode {

using packed::each_index;
using packed::Operand;
using packed_mma::kStages;
using packed_mma::kWarpTile;
using packed_mma::Params;
using packed_mma::Slice;
using packed_mma::Unit;

template <Code kCode>
constexpr Slice kSlice = packed_mma::slice_of(kCode, true);

template <class T, Code kCode>
struct Warp {
  static constexpr Slice kOwn = kSlice<kCode>;
  using U = Unit<kCode>;
  using Op = Operand<T, kCode>;

  float y = 0;
  const uint8_t* units[2];  // of rows g and g + 8
  const uint8_t* own;       // units of the row that the lane scales
  const uint8_t* memory;
  int x;               // bytes from there
  const float2* sums;  // of the slice
  int t, run, half;    // the run of the lane's column; which four runs it scales

  __device__ __forceinline__ Warp(int lane, const uint8_t* memory)
      : memory(memory), t(packed_mma::kept(lane % 4)), half(packed_mma::kept(lane % 2)) {
    const int column = lane / 4;
    run = packed_mma::kept((column >> 1 & 1) * 4 + (column >> 2) * 2 + (column & 1));
  }

  // Runs first … first + 3 of the eight whose sums the quad's lanes have, of the lane's row.
  static __device__ __forceinline__ void share(const float (&c)[4], bool lower, float (&v)[4]) {
    const float from0 = __shfl_xor_sync(~0u, lower ? c[2] : c[0], 2), from1 = __shfl_xor_sync(~0u, lower ? c[3] : c[1], 2);
    v[0] = lower ? c[0] : from0, v[1] = lower ? c[1] : from1;
    v[2] = lower ? from0 : c[2], v[3] = lower ? from1 : c[3];
  }

  // Adds four runs, whose scales and zeros are those of a[j / kEach].
  template <int kEach, int kUp>
  __device__ __forceinline__ void add(const float (&c)[2][4], const packed::Affine (&a)[4], int first_run) {
    constexpr float kDown = 1.0f / (1 << kUp);
    float v[4];
    const float sum[4] = {c[0][0] + c[1][0], c[0][1] + c[1][1], c[0][2] + c[1][2], c[0][3] + c[1][3]};
    share(sum, t < 2, v);
    const float2* const of = sums + first_run + half * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const packed::Affine own = a[j / kEach];
      if constexpr (U::kHasZero) {
        const float2 of_x = of[j];
        y = fmaf(own.scale * kDown, v[j] - of_x.x, fmaf(own.zero, of_x.y, y));
      } else {
        y = fmaf(own.scale, Op::kHasBase ? v[j] - of[j].x : v[j], y);
      }
    }
  }

  // What is the lane's column's, of runs of so many bytes; zero for all lanes but those of the run's column.
  template <class V>
  __device__ __forceinline__ V own_x(int run_bytes, int at) const {
    return *reinterpret_cast<const V*>(memory + x + run * run_bytes + at);
  }
  __device__ __forceinline__ uint32_t of_column(int of_run, uint32_t v) const { return run == of_run ? v : 0; }

  // Eight runs of kRun from kFirst on of the slice.
  template <int kRun, int kFirst>
  __device__ __forceinline__ void multiply(float (&c)[2][4]) const {
    if constexpr (Op::kEight && kRun == 32) {
      const uint4 own = own_x<uint4>(kRun * 2, kFirst * 2 + t * 8);
      each_index<8>([&](auto index) {
        constexpr int kIndex = decltype(index)::value, kAt = (kFirst + kIndex * kRun) / U::kValues * U::kBytes;
        const uint4 g = Op::eight(units[0] + kAt, t), g8 = Op::eight(units[1] + kAt, t);
        mma<T>(c[0], {g.x, g8.x, g.y, g8.y}, of_column(kIndex, own.x), of_column(kIndex, own.y));
        mma<T>(c[1], {g.z, g8.z, g.w, g8.w}, of_column(kIndex, own.z), of_column(kIndex, own.w));
      });
    } else {
      uint2 own[kRun / 16];
#pragma unroll
      for (int i = 0; i < kRun / 16; ++i) own[i] = own_x<uint2>(kRun * 2, (kFirst + i * 16) * 2);
      each_index<8 * kRun / 16>([&](auto index) {
        constexpr int kIndex = decltype(index)::value, kRunOf = kIndex / (kRun / 16), kStep = kFirst + kIndex * 16,
                      kAt = kStep / U::kValues * U::kBytes;
        const uint2 g = Op::template pairs<kStep % U::kValues, true>(units[0] + kAt, t),
                    g8 = Op::template pairs<kStep % U::kValues, true>(units[1] + kAt, t);
        const uint2 b = own[kIndex % (kRun / 16)];
        mma<T>(c[kIndex % 2], {g.x, g8.x, g.y, g8.y}, of_column(kRunOf, b.x), of_column(kRunOf, b.y));
      });
    }
  }

  // Eight runs of kWordRun.
  __device__ __forceinline__ void multiply_words(float (&c)[2][4]) const {
    const uint4 low = own_x<uint4>(kWordRun * 2, t * 24), high = own_x<uint4>(kWordRun * 2, t * 24 + 16);
    each_index<8>([&](auto index) {
      constexpr int kIndex = decltype(index)::value;
      const uint32_t w = reinterpret_cast<const uint32_t*>(units[0])[kIndex * 4 + t],
                     w8 = reinterpret_cast<const uint32_t*>(units[1])[kIndex * 4 + t];
      const auto multiply = [&]<int kS>(std::integral_constant<int, kS>, uint32_t b0, uint32_t b1) {
        mma<T>(c[kS / 2 % 2],
               {pair_of_word<T, kS>(w), pair_of_word<T, kS>(w8), pair_of_word<T, kS + 1>(w), pair_of_word<T, kS + 1>(w8)},
               of_column(kIndex, b0), of_column(kIndex, b1));
      };
      multiply(std::integral_constant<int, 0>(), low.x, low.y), multiply(std::integral_constant<int, 2>(), low.z, low.w);
      multiply(std::integral_constant<int, 4>(), high.x, high.y), multiply(std::integral_constant<int, 6>(), high.z, high.w);
    });
  }

  // 256 k that are a block, or eight of them, of the slice's that `left` k are of.
  __device__ __forceinline__ void add_blocks(int left) {
    constexpr int kRun = U::kGroup == 16 ? 16 : 32;
    each_index<256 / (8 * kRun)>([&](auto part) {
      constexpr int kPart = decltype(part)::value;
      float c[2][4] = {};  // two chains, so that one mma does not wait for another
      packed::Affine a[4];
      if constexpr (U::kGroups >= 4) {
        packed::affine_of<kCode>(own, kPart * 2 + half, a);
      } else if constexpr (U::kValues == 256) {
        packed::affine_of<kCode>(own, 0, a);
        a[1] = a[2] = a[3] = a[0];
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          packed::Affine one[4];
          packed::affine_of<kCode>(own + (half * 4 + j) * U::kBytes, 0, one);
          a[j] = (half * 4 + j) * 32 < left ? one[0] : packed::Affine{};
        }
      }
      multiply<kRun, kPart * 8 * kRun>(c);
      add<1, Op::kUp>(c, a, kPart * 8);
    });
  }

  static __device__ __forceinline__ packed::Affine of_line(const uint8_t* lines, int line, const Params& a) {
    const int at = 2 * line * kWarpTile;
    return {load_float(lines, at, a.p.scale_type), load_float(lines, at + kWarpTile, a.p.scale_type)};
  }

  // 256 k with scales beside, of which `lines` is the first of the lane's row.
  template <int kScaleK>
  __device__ __forceinline__ void add_beside(const uint8_t* lines, const Params& p) {
    constexpr int kRun = kScaleK == 16 ? 16 : 32;
    each_index<256 / (8 * kRun)>([&](auto part) {
      constexpr int kPart = decltype(part)::value, kEach = kScaleK == 128 ? 4 : 1;
      float c[2][4] = {};  // two chains, so that one mma does not wait for another
      packed::Affine a[4];
#pragma unroll
      for (int j = 0; j < 4 / kEach; ++j) a[j] = of_line(lines, (kPart * 2 + half) * 4 / kEach + j, p);
      multiply<kRun, kPart * 8 * kRun>(c);
      add<kEach, Op::kUp>(c, a, kPart * 8);
    });
  }

  // A slice of `left` k; `lines` as above.
  __device__ __forceinline__ void add_slice(const Params& p, const uint8_t* lines, int left) {
    if constexpr (U::kBeside) {
      if constexpr (kHasWords<kCode>) {
        static_assert(kOwn.k == 8 * kWordRun);
        if (p.scale_k == 128) {
          float c[2][4] = {};  // two chains, so that one mma does not wait for another
          const packed::Affine a[4] = {of_line(lines, half * 2, p), of_line(lines, half * 2 + 1, p)};
          multiply_words(c);
          return add<2, 0>(c, a, 0);
        }
      }
#pragma unroll 1
      for (int k = 0; k < left; k += 256) {
        switch (p.scale_k) {
          case 16: add_beside<16>(lines, p); break;
          case 32: add_beside<32>(lines, p); break;
          default: add_beside<128>(lines, p);
        }
        next_256(), lines += 256 / p.scale_k * 2 * kWarpTile * bytes_of(p.p.scale_type), sums += p.scale_k == 16 ? 16 : 8;
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < left; k += 256) {
        add_blocks(left - k);
        next_256(), sums += U::kGroup == 16 ? 16 : 8;
      }
    }
  }

  __device__ __forceinline__ void next_256() {
    constexpr int kBytes = 256 / U::kValues * U::kBytes;
    units[0] += kBytes, units[1] += kBytes, own += kBytes, x += 512;
  }
};

template <class T, Code kCode>
__device__ __forceinline__ void compute(const Params& a) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr Slice kOwn = kSlice<kCode>;
  using U = Unit<kCode>;
  using packed_mma::kept;
  const PackedLinear& p = a.p;
  const int warps_n = a.warps_n, block_n = warps_n * kWarpTile, K = static_cast<int>(p.K);
  const int lane = kept(threadIdx.x % 32), slice = threadIdx.x / 32 / warps_n, warp_n = threadIdx.x / 32 - slice * warps_n;
  const int64_t n0 = int64_t{blockIdx.x} * block_n;
  const int n = static_cast<int>(n0) + warp_n * kWarpTile, step = kOwn.k * a.k_warps, first = slice * kOwn.k;
  const int step_bytes = kOwn.bytes * a.k_warps;

  // Each warp has two stages of its own, and waits for no other. A stage is copied anew as soon as it has been read.
  const packed_mma::RowCopies<kOwn, kWarpTile> codes(p, n, lane);
  const packed_mma::LaneUnits<kOwn, kWarpTile> units(p, n, lane);
  const int own = kept(static_cast<int>(threadIdx.x / 32) * kStages * a.stage_bytes);
  const uint32_t shared = shared_address(memory);
  const auto copy = [&](int k, int at, int stage) {
    if (k < K) {
      codes.copy(shared + stage, at);
      if constexpr (U::kBeside) packed_mma::copy_scales(a, shared + stage + a.scales, k, kOwn.k, n, kWarpTile, lane, 32);
    }
    commit_copies();
  };
  int at = kept(kOwn.bytes * slice);
  if (first < K) codes.prefetch(at);
  wait_for_last_kernel();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copy(first + i * step, at + i * step_bytes, own + i * a.stage_bytes);

  // Behind the stages: x and its sums.
  const SharedX x{reinterpret_cast<uint16_t*>(memory + a.pairs), reinterpret_cast<float2*>(memory + a.pairs + a.steps * 2),
                  a.run_log2};
  stage_x<T, kCode>(p, x, a.steps);
  __syncthreads();

  Warp<T, kCode> sums(lane, memory);
  const int own_row = kept(lane / 4 + lane % 4 / 2 * 8);  // that the lane scales
  const int own_line = kept(a.scales + own_row * bytes_of(p.scale_type));
  const bool is_upper = lane % 4 < 2;
  const int x_at = kept(a.pairs + lane % 4 * 8);
  int stage = own;
#pragma unroll 1
  for (int k = first; k < K; k += step, at += step_bytes) {
    wait_copies<kStages - 1>();
    __syncwarp();
    units.find(memory + stage, at, sums.units);
    const auto upper = reinterpret_cast<uintptr_t>(sums.units[0]), lower = reinterpret_cast<uintptr_t>(sums.units[1]);
    sums.own = sums.units[0] + (is_upper ? 0 : lower - upper);
    sums.x = x_at + k * 2, sums.sums = x.sums + (k >> x.run_log2);
    sums.add_slice(a, memory + stage + own_line, min(K - k, kOwn.k));
    __syncwarp();
    copy(k + kStages * step, at + kStages * step_bytes, stage);
    stage = stage == own ? own + a.stage_bytes : own;
  }
  wait_copies<0>();

  // Adds up what lanes and warps have of K.
  sums.y += __shfl_xor_sync(~0u, sums.y, 1);
  __syncthreads();
  auto* const all = reinterpret_cast<float*>(memory);
  if (lane % 2 == 0) all[slice * block_n + warp_n * kWarpTile + own_row] = sums.y;
  __syncthreads();
  for (int i = threadIdx.x; i < block_n && n0 + i < p.N; i += blockDim.x) {
    float sum = 0;
#pragma unroll 1
    for (int s = 0; s < a.k_warps; ++s) sum += all[s * block_n + i];
    if (packed::has_scale_of_all(p)) sum *= *static_cast<const float*>(p.scale);
    if (p.row_scale) sum *= *p.row_scale;
    if (p.bias) sum += load_float(p.bias, n0 + i, p.bias_type);
    packed::store(p, n0 + i, sum);
  }
}

// Blocks of kMostThreads that a multiprocessor's registers are shared by: as many as spill nothing.
template <Code kCode>
constexpr int kBlocks = Unit<kCode>::kBeside ? 2 : 3;

template <class T, Code kCode>
__global__ void __launch_bounds__(kMostThreads, kBlocks<kCode>) packed_decode(const __grid_constant__ Params a) {
  start_next_kernel();
  compute<T, kCode>(a);
}

}  // namespace aoext::cuda::packed_decode
