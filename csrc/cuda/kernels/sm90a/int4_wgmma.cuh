// Weight-only int4 for many rows on Hopper: y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point.
//
// What it computes with. w is the left operand of wgmma, from registers: a warpgroup dequantises 64 rows by 64 k, rounds
// once to x's type, and multiplies by up to 256 rows of x, which lie in shared memory as the copy engine brought them. So
// y comes transposed, and narrow tiles (few rows of x) still fill the 64 rows of the instruction.
//
// How it walks memory. A block takes 128 rows of w by kTokens rows of x: two warpgroups (four for narrow tiles, see
// below) multiply, two threads of another copy. Weights come in stages of 256 k, a 128-byte line a row with its scales and zeros;
// x in steps of 64 k. For 128 by 256 a step is 4 + 32 KiB against 1024 cycles of the matrix engine; L2 keeps up with that
// (reading x once for two blocks of a cluster gained nothing). Where tiles do not come out even over the blocks, the last of them
// are shared along K (segments.h).
//
// How it hides time. The instruction reads its left operand from registers while it runs, so a warpgroup keeps two
// sets of fragments: while the engine multiplies one, nibbles become the other, 50 instructions a thread for 32 k, and
// it never waits for the product it has just issued. That is latency more than work, so for narrow tiles, whose sums leave
// registers for it, two pairs of warpgroups take turns at the steps (kWays) and add their sums at the end.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/segments.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kStep = 64;               // of K: a 128-byte line of x
constexpr int kStage = 256;             // of K: a 128-byte line of w
constexpr int kSteps = kStage / kStep;  // in a stage
constexpr int kChunks = kStage / 32;    // in a stage: 32 k are 16 bytes of w and two products
constexpr int kRows = 128;              // of w
constexpr int kMostGroups = 8;          // in a stage: groups of 32
constexpr int kPair = 256;              // threads of the two warpgroups that multiply one step
constexpr int kPairWarps = kPair / 32;
constexpr int kRaster = 32;  // tiles along N that run side by side, so that L2 serves x and w

struct Arguments {
  void* y;
  const void* bias;
  Element bias_type;
  int M, N;
  int group_size;
  int row_tiles, token_tiles;
  Segments segments;  // what lies outside K in the last stage is zero
};

// ---- Shared memory ----

template <class S, int kTokens, int kXStages, int kWStages>
struct Layout {
  static constexpr int kXBytes = kTokens * kStep * 2;
  static constexpr int kWBytes = kRows * kStage / 2;
  static constexpr int kScaleBytes = kMostGroups * kRows * int(sizeof(S));
  static constexpr int kX = 0;
  static constexpr int kW = kX + kXStages * kXBytes;
  static constexpr int kScale = kW + kWStages * kWBytes;
  static constexpr int kZero = kScale + kWStages * kScaleBytes;
  static constexpr int kRing = kZero + kWStages * kScaleBytes;
  // An output tile of one warpgroup on its way to y: rows of 64 outputs, padded against bank conflicts.
  static constexpr int kChunk = kTokens < 32 ? kTokens : 32;
  static constexpr int kPitch = 64 * 2 + 16;
  static constexpr int kOut = kRing;
  static constexpr int kOutBytes = kChunk * kPitch;  // one of two buffers of one warpgroup
  static constexpr int kBarriers = kOut + 4 * kOutBytes;
  static constexpr int kBytes = kBarriers + 2 * 8 * (kXStages + kWStages) + 1024;  // the copy engine's alignment
  // What one pair of warpgroups hands to the other passes through there too.
  static constexpr int kSumPitch = (kRows + 4) * 4;
  static_assert(kChunk * kSumPitch <= 4 * kOutBytes);
  // A tile that the blocks of a cluster add up lies over the ring.
  static_assert(kXStages == 0 || kTokens * kSumPitch <= kBarriers);
};

// ---- From nibbles to fragments ----

template <class T>
struct Format;

template <>
struct Format<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kMagic = 0x43084308;  // 128, of which a nibble makes 128 + 8 + q
  static constexpr float kOffset = 136;
  __device__ static Pair both(float v) { return __float2bfloat162_rn(v); }
  __device__ static Pair pair(float low, float high) { return __floats2bfloat162_rn(low, high); }
  __device__ static float2 floats(Pair v) { return __bfloat1622float2(v); }
};

template <>
struct Format<__half> {
  using Pair = __half2;
  static constexpr uint32_t kMagic = 0x64086408;  // 1024 + 8 + q
  static constexpr float kOffset = 1032;
  __device__ static Pair both(float v) { return __float2half2_rn(v); }
  __device__ static Pair pair(float low, float high) { return __floats2half2_rn(low, high); }
  __device__ static float2 floats(Pair v) { return __half22float2(v); }
};

template <class To, class From>
__device__ inline To bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  return *reinterpret_cast<To*>(&v);
}

// Scale and zero of a row: pairs of x's type, or float32.
template <class T, class S>
struct Affine {
  typename Format<T>::Pair scale, zero;

  __device__ static typename Format<T>::Pair load(uint32_t address) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return bits<typename Format<T>::Pair>(__byte_perm(v, 0, 0x1010));
  }

  __device__ uint32_t operator()(uint32_t biased) const {
    using F = Format<T>;
    const auto q = __hsub2(bits<typename F::Pair>(biased), F::both(F::kOffset));  // exact
    return bits<uint32_t>(__hfma2(q, scale, zero));
  }
};

template <class T>
struct Affine<T, float> {
  float scale, zero;

  __device__ static float load(uint32_t address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
  }

  __device__ uint32_t operator()(uint32_t biased) const {
    using F = Format<T>;
    const float2 q = F::floats(bits<typename F::Pair>(biased));
    return bits<uint32_t>(F::pair(fmaf(q.x - F::kOffset, scale, zero), fmaf(q.y - F::kOffset, scale, zero)));
  }
};

// A value that the compiler can't compute again, so that it stays in a register: reading the thread's number takes long.
__device__ inline uint32_t kept(uint32_t v) { return __shfl_sync(~0u, v, threadIdx.x); }

// A byte of two nibbles as a pair of x's type. The multiplication puts the odd k at bit 16, on another pipe than the
// logic, of which a byte needs one operation: integer logic runs at half the rate of everything else here.
template <class T, class A>
__device__ inline uint32_t dequantise(uint32_t byte, const A& affine) {
  return affine(and_xor<0x000F000F, Format<T>::kMagic>(byte * 0x1001));
}

// ---- Tiles and rings ----

// Where a block works: the same for all its threads.
struct Tile {
  int row, token;  // first of w and of x
};

__device__ inline Tile tile_of(const Arguments& p, int index, int tokens) {
  const int area = kRaster * p.token_tiles;
  const int strip = index / area;
  const int in_strip = index % area;
  const int height = min(kRaster, p.row_tiles - strip * kRaster);
  return {(strip * kRaster + in_strip % height) * kRows, in_strip / height * tokens};
}

__device__ inline float load_bias(const Arguments& p, int n) {
  return p.bias == nullptr || n >= p.N ? 0 : load_float(p.bias, n, p.bias_type);
}

// A place in a ring of stages, and the parity of its present round: one counter where the stages are a power of two,
// since narrow tiles are short of registers.
template <int kStages>
class Ring {
 public:
  __device__ explicit Ring(int first = 0) : place_(first) {}

  __device__ int slot() const { return kCounts ? place_ % kStages : place_; }
  __device__ uint32_t parity() const { return kCounts ? place_ / kStages & 1 : parity_; }

  __device__ void advance(int places = 1) {
    place_ += places;
    if (!kCounts && place_ >= kStages) place_ -= kStages, parity_ ^= 1;
  }

 private:
  static constexpr bool kCounts = (kStages & (kStages - 1)) == 0;
  unsigned place_;
  uint32_t parity_ = 0;
};

// ---- Copying: one thread for w, one for x. What they do per copy is what limits narrow tiles, so nothing that can be
// done once a tile belongs in the inner loops. ----

// Asks L2 for the first weights while the last kernel ends.
template <int kTokens, int kWStages>
__device__ inline void prefetch_weights(const Arguments& p, const Rest& rest, const CUtensorMap& w_map) {
  const Segment first =
      int(blockIdx.x) < p.segments.whole_tiles ? Segment{int(blockIdx.x), 0, p.segments.stages} : rest.segments[0];
  const int row = tile_of(p, first.tile, kTokens).row;
  for (int stage = first.first_stage; stage < first.first_stage + min(first.stages, kWStages); ++stage)
    prefetch_tile(&w_map, stage * (kStage / 2), row);
}

template <class L, class S, int kTokens, int kWStages>
__device__ inline void copy_weights(const Arguments& p, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                    const CUtensorMap& w_map, const CUtensorMap& scale_map, const CUtensorMap& zero_map) {
  prefetch_map(&w_map), prefetch_map(&scale_map), prefetch_map(&zero_map);
  const int groups = max(kStage / p.group_size, 1);                 // in a stage
  const int stages = max((p.group_size + kStage - 1) / kStage, 1);  // in a group
  const uint32_t bytes = L::kWBytes + 2 * groups * kRows * sizeof(S);
  Ring<kWStages> w;
  each_segment(p.segments, rest, [&](const Segment& segment) {
    const int row = tile_of(p, segment.tile, kTokens).row;
    int k = segment.first_stage * (kStage / 2), scale_row = segment.first_stage / stages * groups,
        in_group = segment.first_stage % stages;
#pragma unroll 1
    for (int stage = 0; stage < segment.stages; ++stage, k += kStage / 2) {
      const uint32_t arrived = full + 8 * w.slot(), scales = shared + L::kScale + w.slot() * L::kScaleBytes;
      barrier_wait(empty + 8 * w.slot(), w.parity() ^ 1);
      barrier_expect(arrived, bytes);
      copy_tile(shared + L::kW + w.slot() * L::kWBytes, &w_map, arrived, k, row);
      copy_tile(scales, &scale_map, arrived, row, scale_row);
      copy_tile(scales + (L::kZero - L::kScale), &zero_map, arrived, row, scale_row);
      w.advance();
      if (++in_group == stages) in_group = 0, scale_row += groups;
    }
  });
}

template <class L, int kTokens, int kXStages>
__device__ inline void copy_input(const Arguments& p, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                  const CUtensorMap& x_map) {
  prefetch_map(&x_map);
  Ring<kXStages> x;
  each_segment(p.segments, rest, [&](const Segment& segment) {
    const int token = tile_of(p, segment.tile, kTokens).token, end = (segment.first_stage + segment.stages) * kStage;
#pragma unroll 1
    for (int k = segment.first_stage * kStage; k < end; k += kStep) {
      barrier_wait(empty + 8 * x.slot(), x.parity() ^ 1);
      barrier_expect(full + 8 * x.slot(), L::kXBytes);
      copy_tile(shared + L::kX + x.slot() * L::kXBytes, &x_map, full + 8 * x.slot(), k, token);
      x.advance();
    }
  });
}

// ---- From sums to y ----

// A thread that multiplies. It holds sums of rows row, row + 8 by tokens 8 j + 2 quad, 8 j + 2 quad + 1.
struct Thread {
  int way, group;  // which pair of warpgroups, which of the two
  int lane, quad;  // quad: place among four
  int warp_row;    // first of the warp's 16 rows in the tile
  __device__ int row() const { return warp_row + lane / 4; }
};

// The second pair's sums to the first, through shared memory, a few tokens at a time.
template <class L, int kTokens>
__device__ inline void add_pairs(float (&sums)[kTokens / 2], const Thread& me, uint32_t shared) {
  const uint32_t mine = shared + L::kOut + 2 * me.quad * L::kSumPitch + me.row() * 4;
  sync_threads_of(1, 2 * kPair);  // the first pair may still be writing the last tile from there
#pragma unroll
  for (int c = 0; c < kTokens / L::kChunk; ++c) {
#pragma unroll
    for (int j = 0; j < L::kChunk / 2; ++j)
      if (me.way == 1) store_shared(mine + (j / 4 * 8 + j % 2) * L::kSumPitch + j / 2 % 2 * 32, sums[c * L::kChunk / 2 + j]);
    sync_threads_of(1, 2 * kPair);
#pragma unroll
    for (int j = 0; j < L::kChunk / 2; ++j)
      if (me.way == 0) sums[c * L::kChunk / 2 + j] += load_shared(mine + (j / 4 * 8 + j % 2) * L::kSumPitch + j / 2 % 2 * 32);
    sync_threads_of(1, 2 * kPair);
  }
}

// A warpgroup's 64 rows: transposed through shared memory, so that a row of y leaves in pieces of 128 bytes.
template <class T, class L, int kTokens>
__device__ inline void write_tile(const float (&sums)[kTokens / 2], const Thread& me, const Arguments& p, const Tile& tile,
                                  uint32_t shared) {
  using F = Format<T>;
  const int thread = threadIdx.x % 128, row = me.warp_row % 64;
  const int n = tile.row + me.group * 64;  // first of this warpgroup
  const float upper = load_bias(p, n + row + me.lane / 4), lower = load_bias(p, n + row + me.lane / 4 + 8);
#pragma unroll
  for (int c = 0; c < kTokens / L::kChunk; ++c) {
    const uint32_t buffer = shared + L::kOut + (me.group * 2 + c % 2) * L::kOutBytes;
#pragma unroll
    for (int j = 0; j < L::kChunk / 16; ++j) {
      const float* d = sums + (c * L::kChunk + 16 * j) / 2;
      const uint32_t corners[4] = {
          bits<uint32_t>(F::pair(d[0] + upper, d[1] + upper)), bits<uint32_t>(F::pair(d[2] + lower, d[3] + lower)),
          bits<uint32_t>(F::pair(d[4] + upper, d[5] + upper)), bits<uint32_t>(F::pair(d[6] + lower, d[7] + lower))};
      const int token = 16 * j + me.lane / 16 * 8 + me.lane % 8;
      store_transposed(buffer + token * L::kPitch + (row + me.lane / 8 % 2 * 8) * 2, corners);
    }
    sync_threads_of(2 + me.group, 128);
#pragma unroll
    for (int j = 0; j < L::kChunk / 16; ++j) {
      const int token = 16 * j + thread / 8, column = n + thread % 8 * 8;
      const int64_t m = tile.token + c * L::kChunk + token;
      if (m < p.M && column < p.N)
        *reinterpret_cast<uint4*>(static_cast<T*>(p.y) + m * p.N + column) =
            load_shared_16(buffer + token * L::kPitch + thread % 8 * 16);
    }
  }
  sync_threads_of(2 + me.group, 128);  // the buffers may be written again
}

// Both blocks of a cluster leave their sums over their rings, and each adds up its half of the tokens, so many loads of a thread
// at once.
template <class T, class L, int kTokens, int kThreads>
__device__ inline void write_cluster_tile(const float (&sums)[kTokens / 2], const Thread& me, const Arguments& p,
                                          const Tile& tile, uint32_t shared) {
  constexpr int kOwned = kTokens / 2 * (kRows / 4);  // items of four rows
  constexpr int kMine = (kOwned + kThreads - 1) / kThreads, kItems = kMine < 8 ? kMine : 8;
  sync_threads_of(1, kThreads);
  const uint32_t mine = shared + 2 * me.quad * L::kSumPitch + me.row() * 4;
#pragma unroll
  for (int j = 0; j < kTokens / 2; ++j)
    if (me.way == 0) store_shared(mine + (j / 4 * 8 + j % 2) * L::kSumPitch + j / 2 % 2 * 32, sums[j]);
  cluster_sync();
  const int first = blockIdx.x % 2 * (kTokens / 2);
#pragma unroll 1
  for (int begin = threadIdx.x; begin < kOwned; begin += kItems * kThreads) {
    float4 parts[kItems][2];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = min(begin + i * kThreads, kOwned - 1);
      const uint32_t at = shared + (first + item / (kRows / 4)) * L::kSumPitch + item % (kRows / 4) * 16;
#pragma unroll
      for (int block = 0; block < 2; ++block) parts[i][block] = load_remote(remote_address(at, block));
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = begin + i * kThreads, n = tile.row + item % (kRows / 4) * 4;
      const int64_t m = tile.token + first + item / (kRows / 4);
      if (item >= kOwned || m >= p.M || n >= p.N) continue;
      const float4 &a = parts[i][0], &b = parts[i][1];
      const uint2 result = {bits<uint32_t>(Format<T>::pair(a.x + b.x + load_bias(p, n), a.y + b.y + load_bias(p, n + 1))),
                            bits<uint32_t>(Format<T>::pair(a.z + b.z + load_bias(p, n + 2), a.w + b.w + load_bias(p, n + 3)))};
      *reinterpret_cast<uint2*>(static_cast<T*>(p.y) + m * p.N + n) = result;
    }
  }
}

// ---- The kernel ----

// Registers of a thread that copies and of one that multiplies, of the 65,536 that a multiprocessor has.
template <int kWays>
struct Registers;

template <>
struct Registers<1> {
  static constexpr int kCopy = 40, kMultiply = 232;
};

template <>
struct Registers<2> {
  static constexpr int kCopy = 32, kMultiply = 112;
};

constexpr int threads(int ways) { return ways * kPair + 128; }  // registers go to whole warpgroups

template <class T, class S, int kTokens, bool kGroup32, int kXStages, int kWStages, int kWays>
__global__ void __launch_bounds__(threads(kWays), 1)
    int4_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
               const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap zero_map, const Arguments p) {
  using L = Layout<S, kTokens, kXStages, kWStages>;
  extern __shared__ char unaligned[];
  __shared__ Rest rest;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t x_full = shared + L::kBarriers, x_empty = x_full + 8 * kXStages;
  const uint32_t w_full = x_empty + 8 * kXStages, w_empty = w_full + 8 * kWStages;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kXStages; ++i) {
      barrier_init(x_full + 8 * i, 1);
      barrier_init(x_empty + 8 * i, kPairWarps);
    }
    for (int i = 0; i < kWStages; ++i) {
      barrier_init(w_full + 8 * i, 1);
      barrier_init(w_empty + 8 * i, kWays * kPairWarps);
    }
    barrier_init_fence();
    rest.find(p.segments);
  }
  __syncthreads();

  if (warp >= kWays * kPairWarps) {
    release_registers<Registers<kWays>::kCopy>();
    // Where counters are cleared, that kernel has waited for what came before, and only meet() depends on it.
    const bool waits = p.segments.ranges == 0;
    if (threadIdx.x == kWays * kPair) {
      prefetch_weights<kTokens, kWStages>(p, rest, w_map);
      if (waits) wait_for_last_kernel();
      copy_weights<L, S, kTokens, kWStages>(p, rest, shared, w_full, w_empty, w_map, scale_map, zero_map);
    } else if (threadIdx.x == kWays * kPair + 32) {
      if (waits) wait_for_last_kernel(), start_next_kernel();
      copy_input<L, kTokens, kXStages>(p, rest, shared, x_full, x_empty, x_map);
      if (!waits) wait_for_last_kernel(), start_next_kernel();
    }
    __syncwarp();
    if (p.segments.cluster > 1 && rest.segments[0].stages > 0) cluster_sync();  // with those who add up
  } else {
    claim_registers<Registers<kWays>::kMultiply>();
    const Thread me = {warp / kPairWarps, warp / 4 % 2, lane, lane % 4, warp % kPairWarps * 16};
    // Lane t of four holds k = 2t, 2t + 1 and 2t + 8, 2t + 9 of a fragment: bytes t and t + 4 of its 8. The four read
    // them from one word of shared memory. The copy engine's swizzle: chunk c of row r lies at place c ^ r % 8.
    const uint32_t my_row = kept(shared + L::kW + me.row() * (kStage / 2) + (((lane / 4) << 4) ^ (me.way << 5)) + me.quad);
    const uint32_t my_scale = shared + L::kScale + me.row() * int(sizeof(S));
    const int group_shift = p.group_size < kStage ? 26 - __clz(p.group_size) : 3;  // chunks of 32 k to groups of a stage
    float sums[kTokens / 2];
    constexpr int kOwn = kChunks / kWays;  // of a pair of warpgroups in a stage
    uint32_t fragments[2][2][4];
    Ring<kXStages> x(me.way);
    Ring<kWStages> w;

    // A pair of warpgroups takes every kWays-th step of two chunks: its chunk c in a stage is chunk place(c) + 2 · way.
    const auto place = [](int c) { return c / 2 * 2 * kWays + c % 2; };
    // Bytes and scales of a chunk: rows g and g + 8 of the warp's 16.
    uint32_t upper[4], lower[4];
    Affine<T, S> upper_affine, lower_affine;
    const auto load = [&](int c) {
      const uint32_t at = (my_row + w.slot() * L::kWBytes) ^ (place(c) << 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        upper[i] = load_shared_byte(at + 4 * i);
        lower[i] = load_shared_byte(at + 4 * i + 8 * (kStage / 2));
      }
      if (kGroup32 || c % 2 == 0) {
        const uint32_t from =
            my_scale + w.slot() * L::kScaleBytes + ((place(c) + 2 * me.way) >> group_shift) * (kRows * int(sizeof(S)));
        constexpr uint32_t kRow8 = 8 * sizeof(S), kToZero = L::kZero - L::kScale;
        upper_affine.scale = Affine<T, S>::load(from), upper_affine.zero = Affine<T, S>::load(from + kToZero);
        lower_affine.scale = Affine<T, S>::load(from + kRow8), lower_affine.zero = Affine<T, S>::load(from + kRow8 + kToZero);
      }
    };
    const auto unpack = [&](uint32_t (&f)[2][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f[i / 2][i % 2 * 2] = dequantise<T>(upper[i], upper_affine);
        f[i / 2][i % 2 * 2 + 1] = dequantise<T>(lower[i], lower_affine);
      }
    };
    const auto free_weights = [&] {
      __syncwarp();
      if (lane == 0) barrier_arrive(w_empty + 8 * w.slot());
    };
    const auto free_x = [&](int slot) {
      __syncwarp();
      if (lane == 0) barrier_arrive(x_empty + 8 * slot);
    };

    each_segment(p.segments, rest, [&](const Segment& segment) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
      barrier_wait(w_full + 8 * w.slot(), w.parity());
      load(0);
      unpack(fragments[0]);
      load(1);
      int previous = 0;  // slot of x
#pragma unroll 1
      for (int stage = 0; stage < segment.stages; ++stage) {
        const bool last = stage == segment.stages - 1;
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          if (c % 2 == 0) barrier_wait(x_full + 8 * x.slot(), x.parity());
          // Rows of 128 bytes, eight to a swizzled tile of 1024.
          const uint64_t b = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 16 |
                             (shared + L::kX + x.slot() * L::kXBytes + c % 2 * 64) >> 4;
          wgmma_fence();
          Wgmma<kTokens>::multiply(T(), sums, fragments[c % 2][0], b, true);
          Wgmma<kTokens>::multiply(T(), sums, fragments[c % 2][1], b + 2, true);
          wgmma_commit();
          wgmma_wait<1>();  // all chunks but this one: their fragments may be written
          if (c % 2 == 0) {
            if (c > 0 || stage > 0) free_x(previous);
          } else {
            previous = x.slot();
            x.advance(kWays);
          }
          unpack(fragments[(c + 1) % 2]);
          if (c == kOwn - 2) {
            free_weights();
            w.advance();
            if (!last) barrier_wait(w_full + 8 * w.slot(), w.parity());
          }
          if (c < kOwn - 2 || !last) load((c + 2) % kOwn);
        }
      }
      wgmma_wait<0>();
      free_x(previous);

      if constexpr (kWays == 2) add_pairs<L, kTokens>(sums, me, shared);
      const Tile tile = tile_of(p, segment.tile, kTokens);
      const bool whole = segment.stages == p.segments.stages;
      if (!whole && p.segments.cluster > 1)
        write_cluster_tile<T, L, kTokens, kWays * kPair>(sums, me, p, tile, shared);
      else if (me.way == 0 && (whole || meet(sums, p.segments, rest, segment, threadIdx.x, kPair, 4)))
        write_tile<T, L, kTokens>(sums, me, p, tile, shared);
    });
  }
  if (p.segments.cluster > 1) cluster_sync();  // nobody leaves while others still read from here
}

}  // namespace aoext::cuda::wgmma
