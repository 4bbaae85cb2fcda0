// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point, by mma.sync m16n8k16.
//
// swap_ab: weights are the A operand (16 output channels × 16 k), x is B (16 k × 8 rows), so an accumulator is a piece of yᵀ. A
// block computes BLOCK_N output channels × BLOCK_M rows of x, and loads k-tiles of BLOCK_K into kStages stages by cp.async.
// Weights stay packed in shared memory and become bf16 or fp16 in registers.
//
// The order of k inside an mma is free as long as A and B agree, and so is the order of output channels. Hence lane (g = lane /
// 4, t = lane % 4) owns
//   k         BLOCK_K / 4 neighbours, one 8- or 16-byte read of packed weights per output channel. They lie within one group,
//             because group_size % 32 == 0: one scale per lane, output channel and stage, at group size 32 as at 128;
//   channels  warp_n / 8 neighbours, so that one read brings their scales and one store writes their results.
// A word holds 8 k of one output channel: pairs 0 and 1 are operands of one mma, pairs 2 and 3 of the next, and 16 bytes of x of
// the same two.
//
// Fragments are one step of 16 k ahead of the tensor cores: x is reloaded into the registers just read, and the next weights are
// dequantised between the mma of this step. The last step of a stage needs registers only, so its shared memory is refilled
// there, and kStages buffers hold kStages stages. With 32 × 128 outputs a warp, a k-tile of 64 k costs 128 mma and about 350
// other instructions (64 of them fma2, 100 other work on weights, 38 reads of shared memory, 100 for copies).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/kernels/int4.h"
#include "cuda/kernels/mma_tiles.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda::int4_mma {

// A pair of 16-bit floats in a register.
template <class X>
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  if constexpr (std::is_same_v<X, __half>)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// copy16 without its cache hint: other blocks read the same scales, and the same lines of them.
__device__ __forceinline__ void copy16_if(bool issued, uint32_t to, const void* from, bool valid) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %3, 0;"
      "@p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(to),
      "l"(from), "r"(valid ? 16 : 0), "r"(int{issued})
      : "memory");
}

// q of nibbles 2i and 2i + 1 of a word as a pair, exact: a nibble in the low mantissa bits of 128 (bf16) or 1024 (fp16)
// with its sign bit flipped reads 136 + q or 1032 + q. fp32 scales go through bf16, whose halves are floats by a shift.
template <class Q>
constexpr uint32_t kBias = std::is_same_v<Q, __half> ? 0x64086408 : 0x43084308;

// `bias` is kBias<Q> in a register: of two constants the compiler would make two instructions.
template <class Q>
__device__ __forceinline__ uint32_t exact_pair(uint32_t word, uint32_t high_nibbles, int i, uint32_t bias) {
  constexpr bool kHalf = std::is_same_v<Q, __half>;
  const uint32_t bytes = __byte_perm(word, high_nibbles, i | (4 + i) << 8);
  uint32_t biased;
  asm("lop3.b32 %0, %1, 0x000f000f, %2, 0x6a;" : "=r"(biased) : "r"(bytes), "r"(bias));      // (bytes & mask) ^ bias
  return fma2<Q>(biased, kHalf ? 0x3c003c00 : 0x3f803f80, kHalf ? 0xe408e408 : 0xc308c308);  // · 1 − 1032 or − 136
}

// Scales and zero points of a lane's output channels, and w from them with one rounding.
template <class X, class S, int kChannels>
struct Scales {
  static constexpr bool kFloat = std::is_same_v<S, float>;
  using Q = std::conditional_t<kFloat, __nv_bfloat16, X>;
  static constexpr int kWords = kChannels * sizeof(S) / 4;
  uint32_t scale[kWords], zero[kWords];

  __device__ __forceinline__ void read(uint32_t scales, uint32_t zeros) {
    constexpr int kRead = kWords < 4 ? kWords : 4;
#pragma unroll
    for (int i = 0; i < kWords; i += kRead) {
      read_shared(reinterpret_cast<uint32_t (&)[kRead]>(scale[i]), scales + 4 * i);
      read_shared(reinterpret_cast<uint32_t (&)[kRead]>(zero[i]), zeros + 4 * i);
    }
  }

  __device__ __forceinline__ void multiply(const float* factor) {
    static_assert(kFloat);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      scale[i] = __float_as_uint(__uint_as_float(scale[i]) * factor[i]);
      zero[i] = __float_as_uint(__uint_as_float(zero[i]) * factor[i]);
    }
  }

  __device__ __forceinline__ uint32_t weights(uint32_t word, int pair, int channel, uint32_t bias) const {
    const uint32_t q = exact_pair<Q>(word, word >> 4, pair, bias);
    if constexpr (kFloat) {
      const float s = __uint_as_float(scale[channel]), z = __uint_as_float(zero[channel]);
      return rounded_pair<X>(fmaf(__uint_as_float(q << 16), s, z), fmaf(__uint_as_float(q & 0xffff0000), s, z));
    } else {
      const uint32_t both = channel % 2 ? 0x3232 : 0x1010;
      return fma2<X>(q, __byte_perm(scale[channel / 2], 0, both), __byte_perm(zero[channel / 2], 0, both));
    }
  }
};

// What a launch needs beside the problem; host-side divisions are done once.
struct Params {
  Int4Linear p;
  int tiles_m;      // of BLOCK_M rows of x
  int64_t tiles_n;  // of BLOCK_N output channels
  int steps;        // k-tiles of a k-split
  uint32_t magic;   // k / group_size = umulhi(k / 16, magic) >> shift for k a multiple of 32 below 2³¹
  int shift;
  uint32_t stride_weight, stride_x;  // bytes between the rows that a thread copies
  uint32_t bias;                     // kBias
  bool one_group;                    // a stage lies within one group
  bool vector_scales;                // scales and zero points can be copied 16 bytes at a time
  bool vector_y;                     // y can be stored by 16 bytes
  float* partials;                   // [tiles, splits, block_n · block_m] in the order of the accumulators
  unsigned* counters;                // [tiles], zero
};

// Warps of a block along N and M, outputs of a warp along both, k of a stage (BLOCK_K), stages.
template <int warps_n, int warps_m, int warp_n, int warp_m, int block_k, int stages>
struct Tile {
  static constexpr int kWarpsN = warps_n, kWarpsM = warps_m, kWarpN = warp_n, kWarpM = warp_m, kBlockK = block_k;
  static constexpr int kStages = stages;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsM;
  static constexpr int kBlockN = kWarpsN * kWarpN, kBlockM = kWarpsM * kWarpM;
  static constexpr int kChannels = kWarpN / 8;                          // of a lane
  static constexpr int kRowTiles = kWarpN / 16, kColumns = kWarpM / 8;  // mma tiles of a warp
  static constexpr int kGroup = kColumns <= 8 ? kColumns : 4;           // columns whose x is in registers at a time
  static constexpr int kGroups = kColumns / kGroup;
  static constexpr int kWords = kBlockK / 32;  // packed words of a lane and output channel in a stage, two steps of 16 k each
  static constexpr int kSlots = kBlockK / 32;  // groups that a stage may have k of
  static_assert(kBlockK == 64 || kBlockK == 128);

  // Bytes of shared memory. A slot of scales is padded by 32 bytes to spread the slots of a quad's lanes over the banks.
  static constexpr int kWeightBytes = kBlockN * kBlockK / 2, kXBytes = kBlockM * kBlockK * 2;
  template <class S>
  static constexpr int kSlotBytes = kBlockN * static_cast<int>(sizeof(S)) + 32;
  template <class S>
  static constexpr int kScaleBytes = kSlots * kSlotBytes<S>;
  template <class S>
  static constexpr int kStageBytes = kWeightBytes + kXBytes + 2 * kScaleBytes<S>;

  // Where 16-byte chunk c of row m lies in its row of x, so that the 8 lanes of a read phase (two rows, chunks
  // kWords · t + const) meet 8 different chunks of 128 bytes.
  __device__ static __forceinline__ int swizzled(int m, int c) {
    return kBlockK == 64 ? c ^ (m & 1) : c ^ (c >> 3 & 1) ^ (m & 1) << 1;
  }
};

// Copies a block's k-tiles to its stages; each thread has fixed chunks of 16 bytes. What lies past M, N or `end` (of the block's
// k-split) becomes zeros.
template <class T, class S>
struct Loader {
  static constexpr int kChunksW = T::kBlockK / 32, kRowsW = T::kThreads / kChunksW;  // rows that all threads copy together
  static constexpr int kChunksX = T::kBlockK / 8, kRowsX = T::kThreads / kChunksX;
  static_assert(kRowsW % T::kWarpN == 0 && T::kBlockN % kRowsW == 0 && T::kBlockM % kRowsX == 0);
  static_assert(kRowsX % 2 == 0);  // the swizzle is the same for all of a thread's rows
  static constexpr int kScaleBytes = T::template kScaleBytes<S>, kSlotBytes = T::template kSlotBytes<S>;

  const Params& a;
  const int64_t n0;
  const int thread, end;
  int k;               // of the next k-tile
  int rows_n, rows_m;  // left from this thread's first row on
  const uint8_t *weight, *x;
  uint32_t to_weight, to_x, to_scales;

  __device__ Loader(const Params& a, uint32_t shared, int thread, int64_t n0, int64_t m0, int k, int end)
      : a(a), n0(n0), thread(thread), end(end), k(k) {
    // Channel g · kChannels + i of a warp lies in row i · 8 + g, so that lanes g of a read meet neighbouring rows.
    const int row = thread / kChunksW, in_warp = row % T::kWarpN;
    const int n = row - in_warp + in_warp % 8 * T::kChannels + in_warp / 8;
    weight = a.p.weight + (n0 + n) * (a.p.K / 2) + k / 2 + thread % kChunksW * 16;
    rows_n = static_cast<int>(min(a.p.N - n0, int64_t{T::kBlockN})) - n;
    to_weight = shared + thread * 16;
    const int m = thread / kChunksX, c = thread % kChunksX;
    x = static_cast<const uint8_t*>(a.p.x) + ((m0 + m) * a.p.K + k + c * 8) * 2;
    rows_m = static_cast<int>(min(a.p.M - m0, int64_t{T::kBlockM})) - m;
    to_x = shared + T::kWeightBytes + m * T::kBlockK * 2 + T::swizzled(m, c) * 16;
    to_scales = shared + T::kWeightBytes + T::kXBytes;
  }

  // Without branches, so that the copies can be issued between mma.
  __device__ __forceinline__ void copy(int stage) {
    const uint32_t offset = stage * T::template kStageBytes<S>;
    const int left_n = k + thread % kChunksW * 32 < end ? rows_n : 0, left_m = k + thread % kChunksX * 8 < end ? rows_m : 0;
#pragma unroll
    for (int i = 0; i < T::kBlockN / kRowsW; ++i)
      copy16(to_weight + offset + i * T::kThreads * 16, weight + static_cast<uint64_t>(a.stride_weight) * i, i * kRowsW < left_n);
#pragma unroll
    for (int i = 0; i < T::kBlockM / kRowsX; ++i)
      copy16(to_x + offset + i * T::kThreads * 16, x + static_cast<uint64_t>(a.stride_x) * i, i * kRowsX < left_m);
    // [slots, kBlockN] of scales, then of zero points.
    constexpr int kVector = 16 / sizeof(S), kPerSlot = T::kBlockN / kVector, kHalf = T::kSlots * kPerSlot;
#pragma unroll
    for (int i = 0; i < 2 * kHalf; i += T::kThreads) {
      const int j = i + thread, slot = j % kHalf / kPerSlot, n = j % kPerSlot * kVector;
      const S* const from = static_cast<const S*>(j < kHalf ? a.p.scale : a.p.zero_point) + group(k, slot) * a.p.N + n0 + n;
      copy16_if(a.vector_scales && j < 2 * kHalf && !(a.one_group && slot > 0),
                to_scales + offset + j / kHalf * kScaleBytes + slot * kSlotBytes + n * static_cast<int>(sizeof(S)), from,
                k + 32 * slot < end && n0 + n < a.p.N);
    }
    weight += T::kBlockK / 2;
    x += T::kBlockK * 2;
    k += T::kBlockK;
  }

  // Copies scales whose rows do not consist of aligned 16-byte chunks.
  __device__ __forceinline__ void copy_single_scales(int k, int stage) const {
    const uint32_t to = to_scales + stage * T::template kStageBytes<S>;
#pragma unroll 1
    for (int i = thread; i < T::kSlots * T::kBlockN; i += T::kThreads) {
      const int slot = i / T::kBlockN, n = i % T::kBlockN;
      const bool valid = k + 32 * slot < end && n0 + n < a.p.N;
      const int64_t from = valid ? group(k, slot) * a.p.N + n0 + n : 0;
      const uint32_t at = to + slot * kSlotBytes + n * static_cast<int>(sizeof(S));
      store_shared(at, static_cast<const S*>(a.p.scale)[from], valid);
      store_shared(at + kScaleBytes, static_cast<const S*>(a.p.zero_point)[from], valid);
    }
  }

  __device__ __forceinline__ int64_t group(int k, int slot) const {
    return __umulhi(static_cast<uint32_t>(k) / 16 + 2 * slot, a.magic) >> a.shift;
  }

  __device__ static __forceinline__ void store_shared(uint32_t to, S value, bool valid) {
    if constexpr (sizeof(S) == 2)
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(valid ? reinterpret_cast<uint16_t&>(value) : uint16_t{0}) : "memory");
    else
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(valid ? value : 0.0f) : "memory");
  }
};

// A power of two that brings the weights of channel n in [k, end) near 1: fp16 has not the range of fp32 scales.
__device__ inline float fp16_factor(const Int4Linear& p, int64_t n, int64_t k, int64_t end) {
  float largest = 0;
  for (int64_t g = k / p.group_size; g * p.group_size < end; ++g)
    largest = fmaxf(largest, fmaxf(8 * fabsf(static_cast<const float*>(p.scale)[g * p.N + n]),
                                   fabsf(static_cast<const float*>(p.zero_point)[g * p.N + n])));
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return largest == 0 ? 1.0f : __uint_as_float(static_cast<uint32_t>(127 - max(-120, min(exponent, 120))) << 23);
}

template <class X, class S, class T>
__global__ void __launch_bounds__(T::kThreads, 2) int4_mma_kernel(const __grid_constant__ Params a) {
  constexpr int kRowTiles = T::kRowTiles, kColumns = T::kColumns, kChannels = T::kChannels, kStages = T::kStages;
  constexpr int kStage = T::template kStageBytes<S>, kGroup = T::kGroup, kGroups = T::kGroups;
  constexpr bool kRescales = std::is_same_v<X, __half> && std::is_same_v<S, float>;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int warp_n = warp % T::kWarpsN * T::kWarpN, warp_m = warp / T::kWarpsN * T::kWarpM;
  int64_t n0, m0;
  tile_origin<T>(int64_t{blockIdx.x}, a.tiles_n, a.tiles_m, n0, m0);
  const int k_begin = static_cast<int>(blockIdx.y) * a.steps * T::kBlockK;
  const int k_end = min(static_cast<int>(a.p.K), k_begin + a.steps * T::kBlockK);
  const int steps = (k_end - k_begin + T::kBlockK - 1) / T::kBlockK;

  Loader<T, S> loader(a, shared, thread, n0, m0, k_begin, k_end);
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (!a.vector_scales) loader.copy_single_scales(loader.k, i);
    loader.copy(i);
    commit_copies();
  }

  __shared__ float factor[kRescales ? T::kBlockN : 1];
  const float* const own_factor = factor + warp_n + g * kChannels;
  if constexpr (kRescales)
    for (int n = thread; n < T::kBlockN; n += T::kThreads) factor[n] = fp16_factor(a.p, min(n0 + n, a.p.N - 1), k_begin, k_end);

  // Where this lane reads in a stage.
  const uint32_t own_weights = shared + (warp_n + g) * (T::kBlockK / 2) + t * T::kWords * 4;
  const uint32_t own_x = shared + T::kWeightBytes + (warp_m + g) * T::kBlockK * 2;
  const uint32_t own_scales = shared + T::kWeightBytes + T::kXBytes + (warp_n + g * kChannels) * static_cast<int>(sizeof(S)) +
                              (a.one_group ? 0 : t * T::kSlots / 4 * T::template kSlotBytes<S>);
  uint32_t own_chunk[T::kWords];
#pragma unroll
  for (int i = 0; i < T::kWords; ++i) own_chunk[i] = own_x + T::swizzled(g, T::kWords * t + i) * 16;

  float sum[kRowTiles][kColumns][4] = {};
  uint32_t words[kChannels][T::kWords], weights[2][kRowTiles][4], x[kGroup][4];
  Scales<X, S, kChannels> scales;
  const uint32_t bias = __shfl_sync(0xffffffff, a.bias, 0);  // so the compiler knows no constant and keeps a register

  const auto read_stage = [&](uint32_t offset) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) read_shared(words[i], own_weights + offset + i * 8 * (T::kBlockK / 2));
    scales.read(own_scales + offset, own_scales + offset + T::template kScaleBytes<S>);
    if constexpr (kRescales) scales.multiply(own_factor);
  };
  const auto read_x = [&](int j, int group, int word, uint32_t offset) {
    read_shared(x[j], own_chunk[word] + offset + (group * kGroup + j) * 8 * T::kBlockK * 2);
  };
  const auto dequantize = [&](int row_tile, int word, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = 2 * row_tile + i % 2;
      weights[step][row_tile][i] = scales.weights(words[channel][word], 2 * step + i / 2, channel, bias);
    }
  };

  wait_copies<kStages - 1>();
  __syncthreads();
  read_stage(0);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) read_x(j, 0, 0, 0);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) dequantize(r, 0, 0);

  int stage = 0;
  for (int i = 0; i < steps; ++i) {
    const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
    for (int word = 0; word < T::kWords; ++word)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const bool turns = group == kGroups - 1 && step == 1, last = turns && word == T::kWords - 1;
          const int next_group = turns ? 0 : group + 1, next_word = last ? 0 : turns ? word + 1 : word;
          const uint32_t next_offset = (last ? next_stage : stage) * kStage;
          if (last) {
            wait_copies<kStages - 2>();
            __syncthreads();
            if (!a.vector_scales) loader.copy_single_scales(loader.k, stage);
            loader.copy(stage);
            commit_copies();
            read_stage(next_offset);
          }
#pragma unroll
          for (int j = 0; j < kGroup; ++j) {
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r)
              mma<X>(sum[r][group * kGroup + j], weights[step][r], x[j][2 * step], x[j][2 * step + 1]);
            if (step == 1) read_x(j, next_group, next_word, next_offset);
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r)
              if (r * kGroup / kRowTiles == j) {
                if (turns)
                  dequantize(r, next_word, 0);
                else if (group == 0 && step == 0)
                  dequantize(r, word, 1);
              }
          }
        }
    stage = next_stage;
  }
  wait_copies<0>();

  if constexpr (kRescales) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const float unscale[2] = {1 / own_factor[2 * r], 1 / own_factor[2 * r + 1]};
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[r][j][e] *= unscale[e / 2];
    }
  }

  if (gridDim.y > 1 && !reduce_splits<T::kThreads>(sum, a.partials, a.counters)) return;

  // Lane (g, t) has output channels g · kChannels + [0, kChannels) of rows 8 j + 2 t and 8 j + 2 t + 1.
  const int64_t n = n0 + warp_n + g * kChannels;
  const int count = static_cast<int>(min(int64_t{kChannels}, a.p.N - n));
  if (count <= 0) return;
  float added[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) added[i] = a.p.bias && i < count ? load_float(a.p.bias, n + i, a.p.bias_type) : 0.0f;
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t m = m0 + warp_m + 8 * j + 2 * t + e;
      if (m >= a.p.M) continue;
      const float of_row = a.p.row_scale ? a.p.row_scale[m] : 1.0f;
      uint32_t y[kChannels / 2];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        y[r] = rounded_pair<X>(fmaf(sum[r][j][e], of_row, added[2 * r]), fmaf(sum[r][j][e + 2], of_row, added[2 * r + 1]));
      uint16_t* const to = static_cast<uint16_t*>(a.p.y) + m * a.p.N + n;
      if (a.vector_y) {
        if constexpr (kChannels == 8)
          *reinterpret_cast<uint4*>(to) = make_uint4(y[0], y[1], y[2], y[3]);
        else
          *reinterpret_cast<uint2*>(to) = make_uint2(y[0], y[1]);
      } else {
#pragma unroll
        for (int i = 0; i < kChannels; ++i)
          if (i < count) to[i] = static_cast<uint16_t>(y[i / 2] >> i % 2 * 16);
      }
    }
}

}  // namespace aoext::cuda::int4_mma
