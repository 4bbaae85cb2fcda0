// y[m, n] = sum_k x[m, k] (q[n, k] s[k/g, n] + z[k/g, n]) + bias[n] for a batch of up to 64 rows of x, on Hopper.
//
// Operands are those of int4_operands.cuh (the subnormal trick, x scaled up by a power of two, scales applied to a group's sums),
// but multiplied by wgmma. There every warp reads x from shared memory for its 16 output channels; here the tensor cores read it
// once for 64, and the cost of that hardly grows with M. Measured without loads, in cycles of a quarter of a multiprocessor for 1
// KB of weights: 196, 229 and 334 for 16, 32 and 64 rows of x, where memory delivers one in 220.
//
// Memory. A first kernel lays x out as wgmma reads it: for every 16 k of a k-tile of 128 k a matrix of 8 x 16-byte cores, k
// permuted to the order of the nibbles; another one does that of x of 8 bits, to which it quantises where it is asked to. The
// second kernel starts while the first runs. Its block has four consumer warpgroups, row groups of 64 output channels by
// k-splits; two producer threads of a fifth copy weights and x to a ring of stages. Where row groups do not come out even over
// the blocks, pairs of blocks share the last of them along K (tile_scheduler.h).
//
// The second kernel's parts: Block is what all threads know, copy_weights and copy_x are the producers, Consumer multiplies, adds
// the k-splits' sums and stores.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include "cuda/kernels/chunk_sums.cuh"
#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_operands.cuh"
#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/tile_scheduler.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::int4_batch {

using int4_operands::arranged;
using int4_operands::kTileK;
using int4_operands::kTileN;
using int4_operands::Number;
using int4_operands::operands;
using int4_operands::pow2;
using int4_operands::power_pair;
using int4_operands::spread;
using int4_operands::top_exponent;
using int4_operands::word_k;

constexpr int kMath = 512;  // consumer threads
constexpr int kMathWarps = kMath / 32;
constexpr int kThreads = kMath + 128;  // and the producers: setmaxnreg moves registers between whole warpgroups
constexpr int kCopyRegisters = 32, kMathRegisters = 112;  // of a thread
constexpr int kMostDepth = 12;

__host__ __device__ constexpr int log2_of(int v) { return v > 1 ? 1 + log2_of(v / 2) : 0; }

// Two k-tiles of x as the first kernel stores them, each X' [k16][half][m][16 B], sums of x [group][m], 2^-e.
//
// Zeros times sums of x take two multiply-adds for each sum of a lane, and as many loads for each pair of them. For 64 rows of x,
// or several groups in a k-tile, they are a product of bfloat16 by wgmma instead. Its operand has 16 bytes for each row of x,
// behind both k-tiles: a sum as three bfloat16 and a zero, [m][k-tile] or [k-tile][m][group], or as two where a k-tile has four
// groups.
constexpr int kPairKTiles = 2;
template <int Sub, int kBlockM>
struct PairX {
  static constexpr int kSubs = kTileK / Sub;
  static constexpr bool kMultipliesSums = kBlockM == 64 || kSubs > 1;
  static constexpr int kSlice = kBlockM * 32;  // 16 k
  static constexpr int kSums = kBlockM * kTileK * 2;
  static constexpr int kBack = kSums + (kMultipliesSums ? 0 : kSubs * kBlockM * 4);
  static constexpr int kKTileBytes = (kBack + 4 + 127) / 128 * 128;
  static constexpr int kNumbers = kPairKTiles * kKTileBytes;           // of sums
  static constexpr int kKTileNumbers = kSubs == 1 ? 0 : kBlockM * 16;  // from one k-tile's to the next
  static constexpr int kSumNumbers = kSubs == 4 ? 4 : 8;               // bytes of one sum
  static constexpr int kBytes = kNumbers + (kMultipliesSums ? kBlockM * 16 + kKTileNumbers : 0);

  // Stores row m's sum of group s of a k-tile, of a pair at `pair`. `last`: of the last k-tile of x.
  static __device__ __forceinline__ void store_sum(char* pair, int in_pair, int s, int m, float sum, bool last);
};

// A stage, of two k-tiles: rows of 128 bytes, scales and zeros [k-tile][group][output channel], x. Two k-splits take a k-tile
// each; four take the stages in turns, two at a time.
__host__ __device__ constexpr int stage_turns(int k_splits) { return k_splits == 4 ? 2 : 1; }

template <Element S, int Sub, int kBlockM>
struct Stage {
  static constexpr int kScaleBytes = S == Element::fp32 ? 4 : 2;
  __host__ __device__ static constexpr int weights(int k_splits) { return kBatchRows / k_splits * kPairKTiles * kTileK / 2; }
  __host__ __device__ static constexpr int scales(int k_splits) {
    return kBatchRows / k_splits * kPairKTiles * (kTileK / Sub) * kScaleBytes;
  }
  __host__ __device__ static constexpr int x(int k_splits) { return weights(k_splits) + 2 * scales(k_splits); }
  __host__ __device__ static constexpr int bytes(int k_splits) {
    return (x(k_splits) + PairX<Sub, kBlockM>::kBytes + 1023) / 1024 * 1024;
  }
};

struct Params {
  int64_t N;
  const char* x;  // pairs of k-tiles, PairX
  const void* bias;
  const float* row_scale;
  void* y;
  int M;
  int scale_k_tiles;  // k-tiles that share a scale, where groups are longer than a k-tile; else 1
  int k_splits_log2;  // of 4 warpgroups; 4 / k_splits are row groups
  int cluster_log2;
  int k_tiles;             // K / 128
  int depth;               // of the ring
  int bias_type;           // Element
  TileScheduler schedule;  // tiles of all output channels of a block, whose k_tiles are stages of two
};

// Bytes of shared memory beside the ring, for the split-K reductions: sums on their way from warpgroup to warpgroup, and from
// block to block; barriers.
template <int kBlockM>
struct SplitKReduction {
  __host__ __device__ static constexpr int warpgroups(int k_splits) { return (k_splits - 1) * (kMath / k_splits) * kBlockM * 2; }
  __host__ __device__ static constexpr int blocks(int k_splits, int cluster) {
    return (cluster - 1) * (kBlockM / 4 / cluster) * (kMath / k_splits) * 8;
  }
  static constexpr int kFromCluster = 2 * kMostDepth * 8;  // behind the ring's barriers, that of the other block's sums
  static constexpr int kBarriers = kFromCluster + 16;
};

__device__ __forceinline__ int
thread_now() {  // volatile, so that what is computed from it does not occupy registers in the loops
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ void sync_math() { sync_threads_of(1, kMath); }

// ---- Scales and zeros, and sums of x and zeros as sums of bfloat16 ----

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) { return bits<uint32_t>(__floats2bfloat162_rn(low, high)); }

// What remains after rounding to bfloat16.
__device__ __forceinline__ float bf16_rest(float v) { return v - __bfloat162float(__float2bfloat16_rn(v)); }

// Three of them, which hold all of a float32, and a zero; what is not finite is kept as it is.
__device__ __forceinline__ uint2 sum_numbers(float v) {
  const float second = isfinite(v) ? bf16_rest(v) : 0;
  return {bf16_pair(v, second), bf16_pair(bf16_rest(second), 0)};
}

template <int Sub, int kBlockM>
__device__ __forceinline__ void PairX<Sub, kBlockM>::store_sum(char* pair, int in_pair, int s, int m, float sum, bool last) {
  if constexpr (!kMultipliesSums) {
    reinterpret_cast<float*>(pair + in_pair * kKTileBytes + kSums)[s * kBlockM + m] = sum;
  } else {
    char* const numbers = pair + kNumbers + in_pair * kKTileNumbers + m * 16;
    const uint2 v = sum_numbers(sum);
    if constexpr (kSubs == 4)
      *reinterpret_cast<uint32_t*>(numbers + s * kSumNumbers) = v.x;
    else
      *reinterpret_cast<uint2*>(numbers + (kSubs == 1 ? in_pair : s) * kSumNumbers) = v;
    const bool alone = kSubs == 1 && in_pair == 0 && last;
    if (alone) *reinterpret_cast<uint2*>(numbers + kSumNumbers) = uint2{};  // which are multiplied by zeros
  }
}

// Scales and zero points of a lane's two output channels.
template <Element X, Element S>
class Affine {
 public:
  __device__ Affine(uint32_t scale, uint32_t zero) : scale_(load(scale)), zero_(load(zero)) {}

  __device__ float2 scale() const { return unpack(scale_); }
  // Less 8 scales, since the operands are q + 8.
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

// ---- The first kernel of x of 16 bits: a block for a k-tile, a warp for 8 rows of x, the four lanes of group g for row g. ----

template <Element X, int Sub, int kBlockM>
__global__ void __launch_bounds__(kBlockM * 4) stage_kernel(const uint16_t* x, char* out, int M, int64_t K) {
  using Num = Number<X>;
  using P = PairX<Sub, kBlockM>;
  start_next_kernel();  // the second, which waits for this one before it reads or writes
  wait_for_last_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, m = warp * 8 + g;
  const bool mine = m < M;
  __shared__ int top_of_all;
  if (threadIdx.x == 0) top_of_all = 1;
  uint4 v[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (mine) v[j] = *reinterpret_cast<const uint4*>(x + m * K + int64_t(blockIdx.x) * kTileK + word_k<Sub>(t, j));
  __syncthreads();
  int shift = 0;
  if constexpr (!Num::kNormal) {
    const int exponent = top_exponent<Num>(v);
    // Rows with an |x| of 2^121 or more, whose 2^-e no float holds, count as infinite and do not affect the others.
    constexpr int kMostExponent = Num::kTop + Num::kExponentBias - 6;
    if (t == 0 && exponent <= kMostExponent) atomicMax(&top_of_all, exponent);
    __syncthreads();
    shift = min(Num::kTop + Num::kExponentBias - top_of_all, Num::kMaxShift);
  }
  const uint32_t even = power_pair<Num>(shift), odd = power_pair<Num>(shift - 4);
  const int in_pair = blockIdx.x % kPairKTiles;
  char* const pair = out + int64_t(blockIdx.x / kPairKTiles) * P::kBytes;
  char* const k_tile = pair + in_pair * P::kKTileBytes;
  float sum[4][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 b = arranged<Num>(v[j], even, odd, sum[j]);
    auto* const to = reinterpret_cast<uint32_t*>(k_tile + 2 * j * P::kSlice + m * 16 + t * 4);
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
      P::store_sum(pair, in_pair, s, m, total * down, blockIdx.x + 1 == gridDim.x);
    }
  }
  if (threadIdx.x == 0) *reinterpret_cast<float*>(k_tile + P::kBack) = Num::kNormal ? 1.f : pow2(-Num::kUlp - shift);
}

// ---- That of an x of 8 bits, or one that becomes so: blocks for each row of x, a thread for 8 k at a time. ----

struct Codes {
  const void* x;     // [M, K] of codes or, if it quantizes, of X
  float* row_scale;  // [M], written if it quantizes
  char* out;
  int64_t K;
  int M;
  bool quantizes;
};

// Vectors of 8 k: of a thread, which holds them, and of a block, beside which others have the rest of a row.
constexpr int kCodesThreads = 256, kThreadVectors = 2, kBlockVectors = kCodesThreads * kThreadVectors;

// The largest of a block's threads.
__device__ __forceinline__ uint32_t block_max(uint32_t v) {
  __shared__ uint32_t of_warps[kCodesThreads / 32];
  v = __reduce_max_sync(~0u, v);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();
  return __reduce_max_sync(~0u, of_warps[threadIdx.x % (kCodesThreads / 32)]);
}

// 2^e by which codes are scaled up, of the largest of them.
template <class Num, Element kCode>
constexpr int kCodesShift = Num::kNormal ? 0 : Num::kTop - (kCode == Element::int8 ? 7 : 8);

// Threads have vectors in the order in which words lie that are neighbours; those of a group are still neighbours, too.
template <int Sub>
__device__ __forceinline__ int vector_of(int i) {
  constexpr int kVectors = kTileK / 8;
  return i / kVectors * kVectors + word_k<Sub>(i % 4, i % kVectors / 4) / 8;
}

template <Element X, Element kCode, int Sub, int kBlockM>
__device__ __forceinline__ void stage_codes(const Codes& p) {
  using Num = Number<X>;
  using T = typename Num::type;
  using P = PairX<Sub, kBlockM>;
  using Vector = quantize::Words<4>;
  constexpr int kShift = kCodesShift<Num, kCode>;
  const int m = blockIdx.y, all = static_cast<int>(p.K / 8), first = blockIdx.x * kBlockVectors + threadIdx.x;
  const auto load = [&](int i) -> Vector {
    if (m >= p.M || i >= all) return {};
    const int64_t at = m * int64_t{all} + vector_of<Sub>(i);
    if (p.quantizes) return static_cast<const Vector*>(p.x)[at];
    const uint2 codes = static_cast<const uint2*>(p.x)[at];
    return {codes.x, codes.y};
  };
  Vector own[kThreadVectors];
#pragma unroll
  for (int i = 0; i < kThreadVectors; ++i) own[i] = load(first + i * kCodesThreads);
  uint32_t absmax = 0;
  if (p.quantizes) {
#pragma unroll
    for (int i = 0; i < kThreadVectors; ++i) absmax = quantize::absmax_of<T>(own[i], absmax);
#pragma unroll 4
    for (int i = threadIdx.x; i < all; i += kCodesThreads)
      if (i / kBlockVectors != blockIdx.x) absmax = quantize::absmax_of<T>(load(i), absmax);
    absmax = block_max(absmax);
  }
  const quantize::Row<kCode> row(absmax);
  if (p.quantizes && first == 0 && m < p.M) p.row_scale[m] = row.stored_scale();

  const uint32_t even = power_pair<Num>(kShift), odd = power_pair<Num>(kShift - 4);
#pragma unroll
  for (int i = 0; i < kThreadVectors; ++i) {
    const int at = first + i * kCodesThreads, k_tile = at / (kTileK / 8), in_k_tile = at % (kTileK / 8);
    const quantize::Words<2> codes =
        p.quantizes ? row.template codes<T, 8>(own[i]) : quantize::Words<2>{own[i].w[0], own[i].w[1]};
    const int sum = sum_over_lanes(sum_of_codes<kCode>(codes.w[0]) + sum_of_codes<kCode>(codes.w[1]), Sub / 8);
    if (at >= all) continue;
    const int in_pair = k_tile % kPairKTiles;
    char* const pair = p.out + int64_t{k_tile / kPairKTiles} * P::kBytes;
    char* const of_k_tile = pair + in_pair * P::kKTileBytes;
    const uint2 low = widened<T, kCode>(codes.w[0]), high = widened<T, kCode>(codes.w[1]);
    const uint4 b = arranged<Num>(uint4{low.x, low.y, high.x, high.y}, even, odd);
    auto* const to = reinterpret_cast<uint32_t*>(of_k_tile + 2 * (in_k_tile / 4) * P::kSlice + m * 16 + in_k_tile % 4 * 4);
    constexpr int kHalf = P::kSlice / 8;  // words
    to[0] = b.x, to[kHalf] = b.y, to[2 * kHalf] = b.z, to[3 * kHalf] = b.w;
    if (in_k_tile % (Sub / 8) == 0) {
      const float total = static_cast<float>(sum) * kSumUnit<kCode>;
      P::store_sum(pair, in_pair, in_k_tile / (Sub / 8), m, total, (k_tile + 1) * (kTileK / 8) == all);
    }
    if (m == 0 && in_k_tile == 0)
      *reinterpret_cast<float*>(of_k_tile + P::kBack) = Num::kNormal ? 1.f : pow2(-Num::kUlp - kShift);
  }
}

template <Element X, int Sub, int kBlockM>
__global__ void __launch_bounds__(kCodesThreads) stage_codes_kernel(const __grid_constant__ Codes p, bool integers) {
  start_next_kernel();  // as stage_kernel
  wait_for_last_kernel();
  if (integers)
    stage_codes<X, Element::int8, Sub, kBlockM>(p);
  else
    stage_codes<X, Element::e4m3, Sub, kBlockM>(p);
}

// ---- The second kernel ----

struct Ring {
  uint32_t base, full, empty;
  int bytes, depth;
};

template <class Body>
__device__ inline void for_each_stage(const Params& p, const BlockWork& block_work, const Ring& ring, Body&& body) {
  int place = 0;
  uint32_t parity = 1;
  for_each_work</*kStreamK=*/false>(p.schedule, block_work, [&](const WorkTile& work) {
    const int end = (work.first_k_tile + work.k_tiles) * kPairKTiles;
#pragma unroll 1
    for (int k_tile = work.first_k_tile * kPairKTiles; k_tile < end; k_tile += kPairKTiles) {
      barrier_wait(ring.empty + 8 * place, parity);
      body(work.tile, k_tile, ring.base + place * ring.bytes, ring.full + 8 * place);
      if (++place == ring.depth) place = 0, parity ^= 1;
    }
  });
}

// What an instance is compiled for.
template <Element X, Element S, int Sub, int BlockM>
struct Instance {
  static constexpr Element kX = X, kS = S;
  static constexpr int kSub = Sub, kBlockM = BlockM, kSubs = kTileK / Sub, kOctets = kBlockM / 8;
  using Num = Number<X>;
  using T = typename Num::type;
  using Stage = int4_batch::Stage<S, Sub, kBlockM>;
  using PairX = int4_batch::PairX<Sub, kBlockM>;
  using Reduction = SplitKReduction<kBlockM>;
};

struct Maps {
  const CUtensorMap &w, &scale, &zero;
};

// What all threads of a block know.
template <class I>
struct Block {
  const Params& p;
  int k_splits, cluster, rank;
  int rows;         // output channels of a tile
  int turns;        // of the k-splits at the stages
  int zeros, x;     // bytes in a stage: from scales to zero points, to x
  int octet_bytes;  // sums of all lanes of a k-split
  Ring ring;
  uint32_t from_cluster;                // the barrier of the other block's sums
  uint32_t from_k_splits, from_blocks;  // sums

  __device__ __forceinline__ Block(const Params& p, const uint8_t* shared)
      : p(p),
        k_splits(1 << p.k_splits_log2),
        cluster(1 << p.cluster_log2),
        rank(blockIdx.x & (cluster - 1)),
        rows(kBatchRows >> p.k_splits_log2),
        turns(stage_turns(k_splits)),
        zeros(I::Stage::scales(k_splits)),
        x(I::Stage::x(k_splits)),
        octet_bytes((kMath >> p.k_splits_log2) * 16) {
    using Reduction = typename I::Reduction;
    ring.base = __shfl_sync(~0u, (shared_address(shared) + 1023) & ~1023u, 0);  // so that loops do not recompute it
    ring.bytes = I::Stage::bytes(k_splits), ring.depth = p.depth;
    ring.full = ring.base + p.depth * ring.bytes, ring.empty = ring.full + 8 * kMostDepth;
    from_cluster = ring.full + Reduction::kFromCluster;
    from_k_splits = ring.full + Reduction::kBarriers, from_blocks = from_k_splits + Reduction::warpgroups(k_splits);
  }

  __device__ __forceinline__ void start_barriers() const {
    for (int i = 0; i < p.depth; ++i)
      barrier_init(ring.full + 8 * i, 2), barrier_init(ring.empty + 8 * i, kMathWarps / turns * kArrivals);
    barrier_init(from_cluster, 1);
    barrier_expect(from_cluster, (I::kOctets >> p.cluster_log2) * octet_bytes);
    barrier_init_fence();
  }
};

// ---- Producers ----

template <class I>
__device__ __forceinline__ void copy_weights(const Block<I>& block, const BlockWork& block_work, const Maps& maps) {
  const Params& p = block.p;
  const int copies = p.scale_k_tiles == 1 ? 1 : kPairKTiles;  // of scales: one where every k-tile has scales of its own
  // The first weights into L2 while the first kernel runs; more of them would delay what that kernel reads.
  const WorkTile early = first_work(p.schedule, block_work);
  for (int i = 0; i < min(early.k_tiles, block.turns); ++i)
    prefetch_tile(&maps.w, (early.first_k_tile + i) * kPairKTiles * (kTileK / 2), early.tile * block.rows);
  wait_for_last_kernel();
  for_each_stage(p, block_work, block.ring, [&](int tile, int k_tile, uint32_t to, uint32_t arrived) {
    const int row = tile * block.rows;
    barrier_expect(arrived, block.x);
    copy_tile(to, &maps.w, arrived, k_tile * (kTileK / 2), row);
#pragma unroll 1
    for (int i = 0; i < copies; ++i) {
      const int scale_row = copies == 1 ? k_tile * I::kSubs : (k_tile + i) / p.scale_k_tiles;
      const uint32_t scales = to + I::Stage::weights(block.k_splits) + i * block.rows * I::kSubs * I::Stage::kScaleBytes;
      copy_tile(scales, &maps.scale, arrived, row, scale_row);
      copy_tile(scales + block.zeros, &maps.zero, arrived, row, scale_row);
    }
  });
}

template <class I>
__device__ __forceinline__ void copy_x(const Block<I>& block, const BlockWork& block_work) {
  wait_for_last_kernel();
  start_next_kernel();
  for_each_stage(block.p, block_work, block.ring, [&](int, int k_tile, uint32_t to, uint32_t arrived) {
    barrier_expect(arrived, I::PairX::kBytes);
    copy_bytes(to + block.x, block.p.x + int64_t(k_tile / kPairKTiles) * I::PairX::kBytes, arrived, I::PairX::kBytes);
  });
}

// ---- Consumers: a warp has 16 output channels of a tile, a lane the sums of two of them and of octets of rows of x ----

template <class I>
struct Consumer {
  using Num = typename I::Num;
  using T = typename I::T;
  using Stage = typename I::Stage;
  using P = typename I::PairX;
  static constexpr int kBlockM = I::kBlockM, kSubs = I::kSubs, kOctets = I::kOctets;

  // Addresses of a k-tile in shared memory, as this lane reads it.
  struct KTile {
    uint32_t weights, scales, x, sums;
  };

  const Block<I>& block;
  const int lane, g, t, k_split, turn;
  const int tile_row;   // this warp's first output channel in the tile
  const int row;        // this lane's first one from there on: in an order in which lanes 0 to 7 read different banks of a stage,
                        // whose rows of 128 bytes are swizzled
  const int first;      // k-tile of a stage
  const int sub_bytes;  // of a sub's scales, all of a tile
  const int k_tiles;    // of a stage, that are this k-split's
  const uint32_t mine;  // all bits in lanes that have the zeros of the first of them
  KTile own;            // of a stage, from its begin
  bool again = false;   // whether sums went from k-split to k-split before
  float y[kOctets][4];

  __device__ __forceinline__ Consumer(const Block<I>& block, int warp, int lane)
      : block(block),
        lane(lane),
        g(lane >> 2),
        t(lane & 3),
        k_split(warp / 4 & (block.k_splits - 1)),
        turn(k_split / 2),
        tile_row((warp / 4 >> block.p.k_splits_log2) * 64 + warp % 4 * kTileN),
        row(2 * ((g & 4) | (g & 1) << 1 | (g >> 1 & 1))),
        first(k_split % 2),
        sub_bytes(block.rows * Stage::kScaleBytes),
        k_tiles(block.k_splits == 1 ? 2 : 1),
        mine(t / 2 == first ? ~0u : 0) {
    own.weights = ((tile_row + row) * 8 + ((first * 4 + t) ^ (row & 7))) * 16;
    own.scales = Stage::weights(block.k_splits) + first * kSubs * sub_bytes + (tile_row + row) * Stage::kScaleBytes;
    own.x = block.x + first * P::kKTileBytes, own.sums = block.x + P::kNumbers + first * P::kKTileNumbers;
  }

  __device__ __forceinline__ float (&sums()) [kBlockM / 2] { return reinterpret_cast<float (&)[kBlockM / 2]>(y); }

  // Zero points times sums of x. 16 k of the instruction, 8 twice: a k-tile, or a group of it, has those of one lane or two.
  __device__ __forceinline__ void multiply_sums(const KTile& k_tile, uint32_t mine) {
    const uint32_t of_lane = k_tile.scales + t * kSubs / 4 * sub_bytes;
    uint32_t z[4];
    Affine<I::kX, I::kS>(of_lane, of_lane + block.zeros).zero_numbers(z, kSubs == 1 ? mine : ~0u);
    wgmma_fence();
    Wgmma<kBlockM>::multiply(__nv_bfloat16(), sums(), z, matrix_descriptor(k_tile.sums, 0, 128), true);
    wgmma_commit();
  }

  // mine: all bits in lanes that have the zeros of this k-tile.
  __device__ __forceinline__ void multiply(const KTile& k_tile, uint32_t mine) {
    uint4 upper = load_shared_16(k_tile.weights),
          lower = load_shared_16(k_tile.weights ^ (128 + 16));  // stages: 1024-byte aligned
    spread<I::kSub>(upper, t), spread<I::kSub>(lower, t);
    const uint32_t w[2][4] = {{upper.x, upper.y, upper.z, upper.w}, {lower.x, lower.y, lower.z, lower.w}};
    // Cores of 8 m by 16 bytes: the other half of 16 k is half a slice away, the next 8 m 128 bytes.
    const uint64_t x = matrix_descriptor(k_tile.x, P::kSlice / 2, 128);
    const float back = __uint_as_float(load_shared_word(k_tile.x + P::kBack));
    if constexpr (kSubs > 1) multiply_sums(k_tile, mine);
    float acc[kBlockM / 2];
    uint32_t even[2][4], odd[2][4];
#pragma unroll
    for (int s = 0; s < kSubs; ++s) {
#pragma unroll
      for (int j = s * 4 / kSubs; j < (s + 1) * 4 / kSubs; ++j) {
        operands<Num>(w[0][j], w[1][j], even[j % 2], odd[j % 2]);
        wgmma_fence();
        Wgmma<kBlockM>::multiply(T(), acc, even[j % 2], x + (2 * j * P::kSlice >> 4), j > s * 4 / kSubs);
        Wgmma<kBlockM>::multiply(T(), acc, odd[j % 2], x + ((2 * j + 1) * P::kSlice >> 4), true);
        wgmma_commit();
        if (j + 1 < (s + 1) * 4 / kSubs) wgmma_wait<1>();
      }
      const uint32_t of_sub = k_tile.scales + s * sub_bytes;
      const Affine<I::kX, I::kS> affine(of_sub, of_sub + block.zeros);
      float2 a = affine.scale();
      if constexpr (!Num::kNormal) a.x *= back, a.y *= back;
      if constexpr (P::kMultipliesSums) {
        if constexpr (kSubs == 1) multiply_sums(k_tile, mine);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kBlockM / 2; ++i) sums()[i] = fmaf(i & 2 ? a.y : a.x, acc[i], sums()[i]);
      } else {
        const float2 z = affine.zero();
        wgmma_wait<0>();
#pragma unroll
        for (int o = 0; o < kOctets; ++o) {
          const float2 sum = load_shared_pair(k_tile.x + P::kSums + 2 * t * 4 + (s * kBlockM + o * 8) * 4);  // of m, of m + 1
          y[o][0] = fmaf(z.x, sum.x, fmaf(a.x, acc[o * 4], y[o][0]));
          y[o][1] = fmaf(z.x, sum.y, fmaf(a.x, acc[o * 4 + 1], y[o][1]));
          y[o][2] = fmaf(z.y, sum.x, fmaf(a.y, acc[o * 4 + 2], y[o][2]));
          y[o][3] = fmaf(z.y, sum.y, fmaf(a.y, acc[o * 4 + 3], y[o][3]));
        }
      }
    }
  }

  // Who stores an octet of rows of x. Each block of a pair owns half of them, and each k-split a part of that, or only the first
  // ones do where octets are few. Sums go to the owning k-split first, from there to the same lane of the owning block. This runs
  // once a tile, so its time is that of fetching instructions: it should have few.
  __device__ __forceinline__ int block_log2() const { return log2_of(kOctets) - block.p.cluster_log2; }  // of a block's octets
  __device__ __forceinline__ int block_of(int o) const { return o >> block_log2(); }
  __device__ __forceinline__ int in_block(int o) const { return o & ((1 << block_log2()) - 1); }
  __device__ __forceinline__ int k_split_of(int o) const { return in_block(o) >> max(block_log2() - block.p.k_splits_log2, 0); }

  // `thread` is among those of a k-split.
  __device__ __forceinline__ void reduce_k_splits(int thread) {
    // A k-split's octets for the next ones, in their order.
    const uint32_t slots = block.from_k_splits + thread * 16;
    const auto slot = [&](int distance, int o) { return slots + ((distance - 1) * kOctets + o) * block.octet_bytes; };
    if (again) sync_math();  // what was there has been read
    again = true;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int distance = (k_split_of(o) - k_split) & (block.k_splits - 1);
      if (distance != 0) store_shared_16(slot(distance, o), y[o]);
    }
    sync_math();
#pragma unroll
    for (int o = 0; o < kOctets; ++o)
      if (k_split_of(o) == k_split) {
        add_shared_16(y[o], slot(1, o));
        if (block.k_splits > 2) add_shared_16(y[o], slot(2, o)), add_shared_16(y[o], slot(3, o));
      }
  }

  __device__ __forceinline__ void send_to_other_block(uint32_t slots) const {
    const uint32_t there = remote_address(slots, block.rank ^ 1), counts = remote_address(block.from_cluster, block.rank ^ 1);
#pragma unroll
    for (int o = 0; o < kOctets; ++o)
      if (k_split_of(o) == k_split && block_of(o) != block.rank)
        store_remote(there + in_block(o) * block.octet_bytes, counts, y[o]);
  }

  // The split-K reductions of a tile, and y.
  __device__ __forceinline__ void finish(const WorkTile& work) {
    const Params& p = block.p;
    const bool shared = work.k_tiles < p.schedule.k_tiles;
    const int index = thread_now(), thread = index / 128 >> p.k_splits_log2 << 7 | index % 128;
    if (block.k_splits > 1) reduce_k_splits(thread);
    const uint32_t slots = block.from_blocks + thread * 16;
    if (shared) {
      send_to_other_block(slots);
      barrier_wait_cluster(block.from_cluster, 0);
    }
    const int64_t n = static_cast<int64_t>(work.tile) * block.rows + tile_row + row;
    if (n >= p.N) return;
    const auto bias_type = static_cast<Element>(p.bias_type);
    const float2 bias = p.bias ? float2{load_float(p.bias, n, bias_type), load_float(p.bias, n + 1, bias_type)} : float2{0, 0};
    const int N = static_cast<int>(p.N), m = 2 * (thread & 3);
    T* const out = static_cast<T*>(p.y) + m * p.N + n;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (k_split_of(o) != k_split || (shared && block_of(o) != block.rank)) continue;
      if (shared) add_shared_16(y[o], slots + in_block(o) * block.octet_bytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        typename Num::pair pair;
        const float of_row = p.row_scale && m + o * 8 + i < p.M ? p.row_scale[m + o * 8 + i] : 1.0f;
        pair.x = static_cast<T>(fmaf(y[o][i], of_row, bias.x)), pair.y = static_cast<T>(fmaf(y[o][2 + i], of_row, bias.y));
        if (m + o * 8 + i < p.M) *reinterpret_cast<typename Num::pair*>(out + int64_t{o * 8 + i} * N) = pair;
      }
    }
  }

  // This k-split's k-tiles of a stage, whose first is k_tile.
  __device__ __forceinline__ void multiply_stage(uint32_t stage, int k_tile) {
    KTile at{stage + own.weights, stage + own.scales, stage + own.x, stage + own.sums};
#pragma unroll 1
    for (int h = 0; h < k_tiles && k_tile + h < block.p.k_tiles; ++h) {
      multiply(at, h == 0 ? mine : ~mine);
      at.weights ^= 64, at.scales += kSubs * sub_bytes, at.x += P::kKTileBytes, at.sums += P::kKTileNumbers;
    }
  }

  __device__ __forceinline__ void run(const BlockWork& block_work) {
    const Ring& ring = block.ring;
    int place = 0;
    uint32_t parity = 0;
    for_each_work</*kStreamK=*/false>(block.p.schedule, block_work, [&](const WorkTile& work) {
#pragma unroll
      for (int i = 0; i < kOctets * 4; ++i) y[i / 4][i % 4] = 0;
#pragma unroll 1
      for (int i = 0; i < work.k_tiles; ++i) {
        if ((i & (block.turns - 1)) == turn) {
          barrier_wait(ring.full + 8 * place, parity);
          multiply_stage(ring.base + place * ring.bytes, (work.first_k_tile + i) * kPairKTiles + first);
          __syncwarp();
          if (arrives(lane)) barrier_arrive(ring.empty + 8 * place);
        }
        if (++place == ring.depth) place = 0, parity ^= 1;
      }
      finish(work);
    });
  }
};

template <Element X, Element S, int Sub, int kBlockM>
__global__ void __launch_bounds__(kThreads, 1)
    int4_batch_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap scale_map,
                      const __grid_constant__ CUtensorMap zero_map, const __grid_constant__ Params p) {
  using I = Instance<X, S, Sub, kBlockM>;
  extern __shared__ uint8_t unaligned[];
  __shared__ BlockWork block_work;
  const Block<I> block(p, unaligned);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) block.start_barriers();
  if (threadIdx.x == kMath) {
    block_work.find(p.schedule);
    prefetch_map(&w_map), prefetch_map(&scale_map), prefetch_map(&zero_map);
  }
  __syncthreads();
  if (block.cluster > 1) cluster_arrive_initialised();  // the other may send

  if (warp >= kMathWarps) {
    release_registers<kCopyRegisters>();
    if (threadIdx.x == kMath)
      copy_weights(block, block_work, {w_map, scale_map, zero_map});
    else if (threadIdx.x == kMath + 32)
      copy_x(block, block_work);
    __syncwarp();
    if (block.cluster > 1) cluster_wait();
    return;
  }

  claim_registers<kMathRegisters>();
  Consumer<I> consumer(block, warp, lane);
  if (block.cluster > 1) cluster_wait();  // the other has started
  consumer.run(block_work);
}

}  // namespace aoext::cuda::int4_batch
