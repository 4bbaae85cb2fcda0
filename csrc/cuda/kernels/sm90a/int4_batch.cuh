// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for a batch of up to 64 rows m on Hopper.
//
// The operands of int4_decode.cuh (nibbles as subnormal numbers, x scaled up by a power of two, scales applied to the sums of a
// group) with the matrix engine of a warpgroup. There every warp reads x from shared memory for its 16 rows n; here the engine
// reads it once for 64, and what that costs hardly grows with M. Measured without loads, in cycles that a quarter of a
// multiprocessor spends on 1 KB of weights: 196, 229 and 334 for 16, 32 and 64 rows of x, where memory brings one in 220.
//
// A first kernel lays x out as the engine wants it: for each unit of 128 k and every 16 of them a matrix of 8 x 16-byte cores, k
// permuted to the order of the nibbles. The second starts while the first runs. A block is four warpgroups, row groups of 64
// rows n by slices of K; two threads of a fifth copy weights and x to a ring of shared memory. Where groups of rows do not come
// out even over the blocks, pairs of blocks share the rest of them along K (tile_scheduler.h).
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode_ops.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/tile_scheduler.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::int4_batch {

using int4_decode::arranged;
using int4_decode::Number;
using int4_decode::operands;
using int4_decode::pow2;
using int4_decode::power_pair;
using int4_decode::spread;
using int4_decode::top_exponent;
using int4_decode::word_k;

constexpr int kUnitK = 128;  // k of a unit
constexpr int kTileN = 16;   // rows n of a warp
constexpr int kMath = 512;   // threads that multiply
constexpr int kMathWarps = kMath / 32;
constexpr int kThreads = kMath + 128;                     // and some that copy: registers go to whole warpgroups
constexpr int kCopyRegisters = 32, kMathRegisters = 112;  // of a thread
constexpr int kMostDepth = 12;

__host__ __device__ constexpr int log2_of(int v) { return v > 1 ? 1 + log2_of(v / 2) : 0; }

// Two units of x as the first kernel leaves them, each X' [k16][half][m][16 B], sums of x [sub][m], 2^-e.
//
// Zeros times sums of x take two multiply-adds for each sum of a lane, and as many loads for each pair of them. For 64 rows of x,
// or several groups in a unit, they are a product of bfloat16 like the others. To it 16 bytes of numbers come for each m, behind
// both units: three for a sum and a zero, [m][unit] or [unit][m][sub], or two where a unit has four sums.
constexpr int kPairUnits = 2;
template <int Sub, int kTokens>
struct PairX {
  static constexpr int kSubs = kUnitK / Sub;
  static constexpr bool kMultipliesSums = kTokens == 64 || kSubs > 1;
  static constexpr int kSlice = kTokens * 32;  // 16 k
  static constexpr int kSums = kTokens * kUnitK * 2;
  static constexpr int kBack = kSums + (kMultipliesSums ? 0 : kSubs * kTokens * 4);
  static constexpr int kUnit = (kBack + 4 + 127) / 128 * 128;
  static constexpr int kNumbers = kPairUnits * kUnit;                 // of sums
  static constexpr int kUnitNumbers = kSubs == 1 ? 0 : kTokens * 16;  // from one unit's to the next
  static constexpr int kSumNumbers = kSubs == 4 ? 4 : 8;              // bytes of a sum's
  static constexpr int kBytes = kNumbers + (kMultipliesSums ? kTokens * 16 + kUnitNumbers : 0);
};

// A step in the ring, of two units: rows of 128 bytes, scales and zeros [unit][sub][row], x. Two slices have a unit each;
// four take turns with steps, two at a time.
__host__ __device__ constexpr int step_turns(int slices) { return slices == 4 ? 2 : 1; }

template <Element S, int Sub, int kTokens>
struct Step {
  static constexpr int kScaleBytes = S == Element::fp32 ? 4 : 2;
  __host__ __device__ static constexpr int weights(int slices) { return kBatchRows / slices * kPairUnits * kUnitK / 2; }
  __host__ __device__ static constexpr int scales(int slices) {
    return kBatchRows / slices * kPairUnits * (kUnitK / Sub) * kScaleBytes;
  }
  __host__ __device__ static constexpr int x(int slices) { return weights(slices) + 2 * scales(slices); }
  __host__ __device__ static constexpr int bytes(int slices) {
    return (x(slices) + PairX<Sub, kTokens>::kBytes + 1023) / 1024 * 1024;
  }
};

struct Walk {
  int64_t N;
  const char* x;  // pairs of units, PairX
  const void* bias;
  const float* row_scale;
  void* y;
  int M;
  int scale_units;  // units of K that share a row of scales, where groups are longer than a unit; else 1
  int slices_log2;  // of 4: the rest are row groups
  int cluster_log2;
  int units;               // K / 128
  int depth;               // of the ring
  int bias_type;           // Element
  TileScheduler schedule;  // tiles of all rows of a block, stages that are steps of the ring
};

// Bytes of shared memory beside the ring: sums of slices on their way to the first, those of other blocks on their way to the one
// that owns them, barriers.
template <int kTokens>
struct Meeting {
  __host__ __device__ static constexpr int slices(int slices) { return (slices - 1) * (kMath / slices) * kTokens * 2; }
  __host__ __device__ static constexpr int blocks(int slices, int cluster) {
    return (cluster - 1) * (kTokens / 4 / cluster) * (kMath / slices) * 8;
  }
  static constexpr int kFromCluster = 2 * kMostDepth * 8;  // behind those of the ring, what counts the other block's sums
  static constexpr int kBarriers = kFromCluster + 16;
};

__device__ __forceinline__ int thread_now() {  // what is computed of it stays where it is needed, out of the registers of loops
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ void sync_math() { sync_threads_of(1, kMath); }

// ---- Scales and zeros, and the numbers of bfloat16 that sums of x and zeros are sums of ----

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) { return bits<uint32_t>(__floats2bfloat162_rn(low, high)); }

// What the nearest of them lacks.
__device__ __forceinline__ float bf16_rest(float v) { return v - __bfloat162float(__float2bfloat16_rn(v)); }

// Three of them, all that float32 holds, and a zero; of what is not finite, itself.
__device__ __forceinline__ uint2 sum_numbers(float v) {
  const float second = isfinite(v) ? bf16_rest(v) : 0;
  return {bf16_pair(v, second), bf16_pair(bf16_rest(second), 0)};
}

// Of a lane's two rows n.
template <Element X, Element S>
class Affine {
 public:
  __device__ Affine(uint32_t scale, uint32_t zero) : scale_(load(scale)), zero_(load(zero)) {}

  __device__ float2 scale() const { return unpack(scale_); }
  // Less the 8 scales that nibbles are over.
  __device__ float2 zero() const {
    const float2 a = scale(), z = unpack(zero_);
    return kOver ? float2{fmaf(-8.f, a.x, z.x), fmaf(-8.f, a.y, z.y)} : z;
  }
  // The same as two numbers, each of them twice: of the upper row and the lower one, then their second ones.
  __device__ void zero_numbers(uint32_t (&numbers)[4], uint32_t mask) const {
    uint32_t first, second;
    if constexpr (kOver && S == Element::bf16) {
      first = zero_;
      second = bits<uint32_t>(__hmul2(bits<__nv_bfloat162>(scale_), __float2bfloat162_rn(-8)));
    } else {
      const float2 z = zero();
      first = bf16_pair(z.x, z.y), second = bf16_pair(bf16_rest(z.x), bf16_rest(z.y));
    }
    first &= mask, second &= mask;
    numbers[0] = __byte_perm(first, 0, 0x1010), numbers[1] = __byte_perm(first, 0, 0x3232);
    numbers[2] = __byte_perm(second, 0, 0x1010), numbers[3] = __byte_perm(second, 0, 0x3232);
  }

 private:
  static constexpr bool kOver = !Number<X>::kNormal, kFloats = S == Element::fp32;
  using Pair = std::conditional_t<kFloats, float2, uint32_t>;

  __device__ static Pair load(uint32_t address) {
    if constexpr (kFloats)
      return load_shared_pair(address);
    else
      return load_shared_word(address);
  }
  __device__ static float2 unpack(const Pair& v) {
    if constexpr (kFloats)
      return v;
    else
      return Number<S>::unpack(v);
  }

  Pair scale_, zero_;
};

// ---- The first kernel: a block for a unit, a warp for 8 rows m, lane group g for row g. ----

template <Element X, int Sub, int kTokens>
__global__ void __launch_bounds__(kTokens * 4) stage_kernel(const uint16_t* x, char* out, int M, int64_t K) {
  using Num = Number<X>;
  using P = PairX<Sub, kTokens>;
  start_next_kernel();  // the second, which reads and writes nothing before this one is over
  wait_for_last_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, m = warp * 8 + g;
  const bool mine = m < M;
  __shared__ int top_of_all;
  if (threadIdx.x == 0) top_of_all = 1;
  uint4 v[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (mine) v[j] = *reinterpret_cast<const uint4*>(x + m * K + int64_t(blockIdx.x) * kUnitK + word_k<Sub>(t, j));
  __syncthreads();
  int shift = 0;
  if constexpr (!Num::kNormal) {
    const int exponent = top_exponent<Num>(v);
    // Rows that hold an |x| of 2^121 or more, whose 2^-e no float holds, count as infinite and leave the others alone.
    constexpr int kMostExponent = Num::kTop + Num::kExponentBias - 6;
    if (t == 0 && exponent <= kMostExponent) atomicMax(&top_of_all, exponent);
    __syncthreads();
    shift = min(Num::kTop + Num::kExponentBias - top_of_all, Num::kMaxShift);
  }
  const uint32_t even = power_pair<Num>(shift), odd = power_pair<Num>(shift - 4);
  const int in_pair = blockIdx.x % kPairUnits;
  char* const pair = out + int64_t(blockIdx.x / kPairUnits) * P::kBytes;
  char* const unit = pair + in_pair * P::kUnit;
  float sum[4][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 b = arranged<Num>(v[j], even, odd, sum[j]);
    auto* const to = reinterpret_cast<uint32_t*>(unit + 2 * j * P::kSlice + m * 16 + t * 4);
    constexpr int kHalf = P::kSlice / 8;  // words
    to[0] = b.x, to[kHalf] = b.y, to[2 * kHalf] = b.z, to[3 * kHalf] = b.w;
  }
  if (t == g >> 1) {  // this lane's C holds column g
    const float down = Num::kNormal ? 1.f : pow2(-Num::kOne - shift);
#pragma unroll
    for (int s = 0; s < P::kSubs; ++s) {
      float total = 0;
#pragma unroll
      for (int j = s * 4 / P::kSubs; j < (s + 1) * 4 / P::kSubs; ++j) total += g & 1 ? sum[j][1] : sum[j][0];
      if constexpr (P::kMultipliesSums) {
        char* const numbers = pair + P::kNumbers + in_pair * P::kUnitNumbers + m * 16;
        const uint2 v = sum_numbers(total * down);
        if constexpr (P::kSubs == 4)
          *reinterpret_cast<uint32_t*>(numbers + s * P::kSumNumbers) = v.x;
        else
          *reinterpret_cast<uint2*>(numbers + (P::kSubs == 1 ? in_pair : s) * P::kSumNumbers) = v;
        const bool alone = P::kSubs == 1 && in_pair == 0 && blockIdx.x + 1 == gridDim.x;
        if (alone) *reinterpret_cast<uint2*>(numbers + P::kSumNumbers) = uint2{};  // which are multiplied by zeros
      } else {
        reinterpret_cast<float*>(unit + P::kSums)[s * kTokens + m] = total * down;
      }
    }
  }
  if (threadIdx.x == 0) *reinterpret_cast<float*>(unit + P::kBack) = Num::kNormal ? 1.f : pow2(-Num::kUlp - shift);
}

// ---- The second: copying. One thread for weights and scales, one for x. ----

struct Ring {
  uint32_t base, full, empty;
  int bytes, depth;
};

template <class Body>
__device__ inline void each_step(const Walk& p, const BlockWork& block_work, const Ring& ring, Body&& body) {
  int place = 0;
  uint32_t parity = 1;
  for_each_work<false>(p.schedule, block_work, [&](const WorkTile& work) {
    const int end = (work.first_k_tile + work.k_tiles) * kPairUnits;
#pragma unroll 1
    for (int unit = work.first_k_tile * kPairUnits; unit < end; unit += kPairUnits) {
      barrier_wait(ring.empty + 8 * place, parity);
      body(work.tile, unit, ring.base + place * ring.bytes, ring.full + 8 * place);
      if (++place == ring.depth) place = 0, parity ^= 1;
    }
  });
}

template <Element X, Element S, int Sub, int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    int4_batch_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap scale_map,
                      const __grid_constant__ CUtensorMap zero_map, const __grid_constant__ Walk p) {
  using Num = Number<X>;
  using T = typename Num::type;
  using L = Step<S, Sub, kTokens>;
  using P = PairX<Sub, kTokens>;
  using Meet = Meeting<kTokens>;
  constexpr int kSubs = P::kSubs, kOctets = kTokens / 8;
  extern __shared__ uint8_t unaligned[];
  __shared__ BlockWork block_work;
  const int slices = 1 << p.slices_log2, cluster = 1 << p.cluster_log2, rank = blockIdx.x & (cluster - 1);
  Ring ring;
  ring.base = __shfl_sync(~0u, (shared_address(unaligned) + 1023) & ~1023u, 0);  // so that loops don't compute it again
  ring.bytes = L::bytes(slices), ring.depth = p.depth;
  ring.full = ring.base + p.depth * ring.bytes, ring.empty = ring.full + 8 * kMostDepth;
  const uint32_t from_cluster = ring.full + Meet::kFromCluster;
  const uint32_t from_slices = ring.full + Meet::kBarriers, from_blocks = from_slices + Meet::slices(slices);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int rows = kBatchRows >> p.slices_log2;
  const int turns = step_turns(slices);
  const int zeros = L::scales(slices), step_x = L::x(slices);
  const int octet_bytes = (kMath >> p.slices_log2) * 16;  // sums of all lanes of a slice

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.depth; ++i)
      barrier_init(ring.full + 8 * i, 2), barrier_init(ring.empty + 8 * i, kMathWarps / turns * kArrivals);
    barrier_init(from_cluster, 1);
    barrier_expect(from_cluster, (kOctets >> p.cluster_log2) * octet_bytes);
    barrier_init_fence();
  }
  if (threadIdx.x == kMath) {
    block_work.find(p.schedule);
    prefetch_map(&w_map), prefetch_map(&scale_map), prefetch_map(&zero_map);
  }
  __syncthreads();
  if (cluster > 1) cluster_arrive_initialised();  // the other may send

  if (warp >= kMathWarps) {
    release_registers<kCopyRegisters>();
    if (threadIdx.x == kMath) {
      const int copies = p.scale_units == 1 ? 1 : kPairUnits;  // of scales: at once where every unit has rows of its own
      // The first weights to L2 while the first kernel runs; more of them would delay what that reads.
      const WorkTile early = first_work(p.schedule, block_work);
      for (int i = 0; i < min(early.k_tiles, turns); ++i)
        prefetch_tile(&w_map, (early.first_k_tile + i) * kPairUnits * (kUnitK / 2), early.tile * rows);
      wait_for_last_kernel();
      each_step(p, block_work, ring, [&](int tile, int unit, uint32_t to, uint32_t arrived) {
        const int row = tile * rows;
        barrier_expect(arrived, step_x);
        copy_tile(to, &w_map, arrived, unit * (kUnitK / 2), row);
#pragma unroll 1
        for (int i = 0; i < copies; ++i) {
          const int scale_row = copies == 1 ? unit * kSubs : (unit + i) / p.scale_units;
          const uint32_t scales = to + L::weights(slices) + i * rows * kSubs * L::kScaleBytes;
          copy_tile(scales, &scale_map, arrived, row, scale_row);
          copy_tile(scales + zeros, &zero_map, arrived, row, scale_row);
        }
      });
    } else if (threadIdx.x == kMath + 32) {
      wait_for_last_kernel();
      start_next_kernel();
      each_step(p, block_work, ring, [&](int, int unit, uint32_t to, uint32_t arrived) {
        barrier_expect(arrived, P::kBytes);
        copy_bytes(to + step_x, p.x + int64_t(unit / kPairUnits) * P::kBytes, arrived, P::kBytes);
      });
    }
    __syncwarp();
    if (cluster > 1) cluster_wait();
    return;
  }

  claim_registers<kMathRegisters>();
  const int g = lane >> 2, t = lane & 3;
  const int slice = warp / 4 & (slices - 1), row_group = warp / 4 >> p.slices_log2, turn = slice / 2;
  const int tile_row = row_group * 64 + warp % 4 * kTileN;  // this warp's first in the block

  // This lane's rows n of the tile, in an order that lets lanes 0 to 7 read other banks of the ring, whose rows of 128 bytes the
  // copy engine swizzles.
  const int row = 2 * ((g & 4) | (g & 1) << 1 | (g >> 1 & 1)), first = slice % 2;  // unit of a step
  const uint32_t my_weights = ((tile_row + row) * 8 + ((first * 4 + t) ^ (row & 7))) * 16;
  const uint32_t my_scales = L::weights(slices) + (first * kSubs * rows + tile_row + row) * L::kScaleBytes;
  const uint32_t my_x = step_x + first * P::kUnit, my_numbers = step_x + P::kNumbers + first * P::kUnitNumbers;
  const uint32_t mine = t / 2 == first ? ~0u : 0;  // lanes that have zeros of this slice's first unit
  const int own_units = slices == 1 ? 2 : 1;

  float y[kOctets][4];
  auto& sums = reinterpret_cast<float (&)[kTokens / 2]>(y);
  const auto compute = [&](uint32_t weights, uint32_t scales, uint32_t x_unit, uint32_t x_numbers, uint32_t mine) {
    uint4 upper = load_shared_16(weights), lower = load_shared_16(weights ^ (128 + 16));  // 1024-byte aligned steps
    spread<Sub>(upper, t), spread<Sub>(lower, t);
    const uint32_t w[2][4] = {{upper.x, upper.y, upper.z, upper.w}, {lower.x, lower.y, lower.z, lower.w}};
    // Cores of 8 m by 16 bytes: the other half of 16 k is half a slice away, the next 8 m 128 bytes.
    const uint64_t x = matrix_descriptor(x_unit, P::kSlice / 2, 128);
    const float back = __uint_as_float(load_shared_word(x_unit + P::kBack));
    // Of 16 k that are the same 8 twice a unit, or a group of it, has those of one lane or two.
    const auto multiply_sums = [&] {
      const uint32_t of_lane = scales + t * kSubs / 4 * rows * L::kScaleBytes;
      uint32_t z[4];
      Affine<X, S>(of_lane, of_lane + zeros).zero_numbers(z, kSubs == 1 ? mine : ~0u);
      wgmma_fence();
      Wgmma<kTokens>::multiply(__nv_bfloat16(), sums, z, matrix_descriptor(x_numbers, 0, 128), true);
      wgmma_commit();
    };
    if constexpr (kSubs > 1) multiply_sums();
    float acc[kTokens / 2];
    uint32_t even[2][4], odd[2][4];
#pragma unroll
    for (int s = 0; s < kSubs; ++s) {
#pragma unroll
      for (int j = s * 4 / kSubs; j < (s + 1) * 4 / kSubs; ++j) {
        operands<Num>(w[0][j], w[1][j], even[j % 2], odd[j % 2]);
        wgmma_fence();
        Wgmma<kTokens>::multiply(T(), acc, even[j % 2], x + (2 * j * P::kSlice >> 4), j > s * 4 / kSubs);
        Wgmma<kTokens>::multiply(T(), acc, odd[j % 2], x + ((2 * j + 1) * P::kSlice >> 4), true);
        wgmma_commit();
        if (j + 1 < (s + 1) * 4 / kSubs) wgmma_wait<1>();
      }
      const uint32_t of_sub = scales + s * rows * L::kScaleBytes;
      const Affine<X, S> affine(of_sub, of_sub + zeros);
      float2 a = affine.scale();
      if constexpr (!Num::kNormal) a.x *= back, a.y *= back;
      if constexpr (P::kMultipliesSums) {
        if constexpr (kSubs == 1) multiply_sums();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sums[i] = fmaf(i & 2 ? a.y : a.x, acc[i], sums[i]);
      } else {
        const float2 z = affine.zero();
        wgmma_wait<0>();
#pragma unroll
        for (int o = 0; o < kOctets; ++o) {
          const float2 sum = load_shared_pair(x_unit + P::kSums + 2 * t * 4 + (s * kTokens + o * 8) * 4);  // of m, of m + 1
          y[o][0] = fmaf(z.x, sum.x, fmaf(a.x, acc[o * 4], y[o][0]));
          y[o][1] = fmaf(z.x, sum.y, fmaf(a.x, acc[o * 4 + 1], y[o][1]));
          y[o][2] = fmaf(z.y, sum.x, fmaf(a.y, acc[o * 4 + 2], y[o][2]));
          y[o][3] = fmaf(z.y, sum.y, fmaf(a.y, acc[o * 4 + 3], y[o][3]));
        }
      }
    }
  };

  // y of a group of tiles to memory. A lane's sums are of octets of m, of which each block of a pair owns half, and each slice a
  // part of that, or the first ones alone where octets are few. They go to the owner's slice first, from there to the same lane
  // of the owner block. All of this runs once a tile: what it takes is reading its instructions, so it should have few.
  const int block_log2 = log2_of(kOctets) - p.cluster_log2;  // of a block's octets
  const int slice_log2 = max(block_log2 - p.slices_log2, 0);
  const auto block_of = [&](int o) { return o >> block_log2; };
  const auto in_block = [&](int o) { return o & ((1 << block_log2) - 1); };
  const auto slice_of = [&](int o) { return in_block(o) >> slice_log2; };
  bool again = false;
  const auto finish = [&](const WorkTile& work) {
    const bool shared = work.k_tiles < p.schedule.k_tiles;
    const int index = thread_now(), thread = index / 128 >> p.slices_log2 << 7 | index % 128;  // among those of a slice
    if (slices > 1) {
      // A slice's octets for the next slices, in their order.
      const uint32_t slots = from_slices + thread * 16;
      const auto slot = [&](int distance, int o) { return slots + ((distance - 1) * kOctets + o) * octet_bytes; };
      if (again) sync_math();  // what was there has been read
      again = true;
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        const int distance = (slice_of(o) - slice) & (slices - 1);
        if (distance != 0) store_shared_16(slot(distance, o), y[o]);
      }
      sync_math();
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        if (slice_of(o) == slice) {
          add_shared_16(y[o], slot(1, o));
          if (slices > 2) add_shared_16(y[o], slot(2, o)), add_shared_16(y[o], slot(3, o));
        }
    }
    const uint32_t slots = from_blocks + thread * 16;
    if (shared) {
      const uint32_t there = remote_address(slots, rank ^ 1), counts = remote_address(from_cluster, rank ^ 1);
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        if (slice_of(o) == slice && block_of(o) != rank) store_remote(there + in_block(o) * octet_bytes, counts, y[o]);
      barrier_wait_cluster(from_cluster, 0);
    }
    const int64_t n = static_cast<int64_t>(work.tile) * rows + tile_row + row;
    if (n >= p.N) return;
    const auto bias_type = static_cast<Element>(p.bias_type);
    const float2 bias = p.bias ? float2{load_float(p.bias, n, bias_type), load_float(p.bias, n + 1, bias_type)} : float2{0, 0};
    const int N = static_cast<int>(p.N), m = 2 * (thread & 3);
    T* const out = static_cast<T*>(p.y) + m * p.N + n;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (slice_of(o) != slice || (shared && block_of(o) != rank)) continue;
      if (shared) add_shared_16(y[o], slots + in_block(o) * octet_bytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        typename Num::pair pair;
        const float of_row = p.row_scale && m + o * 8 + i < p.M ? p.row_scale[m + o * 8 + i] : 1.0f;
        pair.x = static_cast<T>(fmaf(y[o][i], of_row, bias.x)), pair.y = static_cast<T>(fmaf(y[o][2 + i], of_row, bias.y));
        if (m + o * 8 + i < p.M) *reinterpret_cast<typename Num::pair*>(out + int64_t{o * 8 + i} * N) = pair;
      }
    }
  };

  if (cluster > 1) cluster_wait();  // the other has started
  int place = 0;
  uint32_t parity = 0;
  for_each_work<false>(p.schedule, block_work, [&](const WorkTile& work) {
#pragma unroll
    for (int i = 0; i < kOctets * 4; ++i) y[i / 4][i % 4] = 0;
#pragma unroll 1
    for (int i = 0; i < work.k_tiles; ++i) {
      if ((i & (turns - 1)) == turn) {
        const uint32_t step = ring.base + place * ring.bytes;
        const int unit = (work.first_k_tile + i) * kPairUnits + first;
        barrier_wait(ring.full + 8 * place, parity);
#pragma unroll 1
        for (int h = 0; h < own_units; ++h)
          if (unit + h < p.units)
            compute((step + my_weights) ^ h * 64, step + my_scales + h * kSubs * rows * L::kScaleBytes,
                    step + my_x + h * P::kUnit, step + my_numbers + h * P::kUnitNumbers, h == 0 ? mine : ~mine);
        __syncwarp();
        if (arrives(lane)) barrier_arrive(ring.empty + 8 * place);
      }
      if (++place == ring.depth) place = 0, parity ^= 1;
    }
    finish(work);
  });
}

}  // namespace aoext::cuda::int4_batch
