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
#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kStep = 64;               // of K: a 128-byte line of x
constexpr int kStage = 256;             // of K: a 128-byte line of w
constexpr int kSteps = kStage / kStep;  // in a stage
constexpr int kChunks = kStage / 32;    // in a stage: 32 k are 16 bytes of w and two products
constexpr int kMostGroups = 8;          // in a stage: groups of 32

// What ends a sum: the bias.
template <class T>
struct Biased {
  using Sum = float;
  using Output = T;
  static constexpr bool kWholeVectors = true;
  struct Nothing {};

  T* y;
  const void* bias;
  Element bias_type;
  int M, N;

  __device__ float channel(int n) const { return bias == nullptr || n >= N ? 0 : load_float(bias, n, bias_type); }
  __device__ Nothing token(int) const { return {}; }
  __device__ float operator()(float sum, Nothing, float bias) const { return sum + bias; }
};

template <class T>
struct Arguments {
  Biased<T> epilogue;
  int group_size;
  Tiles tiles;
  Segments segments;  // what lies outside K in the last stage is zero
};

// ---- Shared memory ----

template <class T, class S, int kTokens, int kXStages, int kWStages>
struct Layout {
  static constexpr int kXBytes = kTokens * kStep * 2;
  static constexpr int kWBytes = kRows * kStage / 2;
  static constexpr int kScaleBytes = kMostGroups * kRows * int(sizeof(S));
  static constexpr int kX = 0;
  static constexpr int kW = kX + kXStages * kXBytes;
  static constexpr int kScale = kW + kWStages * kWBytes;
  static constexpr int kZero = kScale + kWStages * kScaleBytes;
  static constexpr int kOut = kZero + kWStages * kScaleBytes;
  static constexpr int kBarriers = kOut + Staging<T, kTokens>::kBytes;
  static constexpr int kBytes = kBarriers + 2 * 8 * (kXStages + kWStages) + 1024;  // the copy engine's alignment
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
  __device__ static float2 floats(Pair v) { return __bfloat1622float2(v); }
};

template <>
struct Format<__half> {
  using Pair = __half2;
  static constexpr uint32_t kMagic = 0x64086408;  // 1024 + 8 + q
  static constexpr float kOffset = 1032;
  __device__ static Pair both(float v) { return __float2half2_rn(v); }
  __device__ static float2 floats(Pair v) { return __half22float2(v); }
};

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
    return rounded_pair<T>(fmaf(q.x - F::kOffset, scale, zero), fmaf(q.y - F::kOffset, scale, zero));
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

// ---- Copying: one thread for w, one for x. What they do per copy is what limits narrow tiles, so nothing that can be
// done once a tile belongs in the inner loops. ----

// Asks L2 for the first weights while the last kernel ends.
template <int kTokens, int kWStages, class Arguments>
__device__ inline void prefetch_weights(const Arguments& p, const Rest& rest, const CUtensorMap& w_map) {
  const Segment first =
      int(blockIdx.x) < p.segments.whole_tiles ? Segment{int(blockIdx.x), 0, p.segments.stages} : rest.segments[0];
  const int row = tile_of(p.tiles, first.tile, kTokens).row;
  for (int stage = first.first_stage; stage < first.first_stage + min(first.stages, kWStages); ++stage)
    prefetch_tile(&w_map, stage * (kStage / 2), row);
}

template <class L, class S, int kTokens, int kWStages, class Arguments>
__device__ inline void copy_weights(const Arguments& p, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                    const CUtensorMap& w_map, const CUtensorMap& scale_map, const CUtensorMap& zero_map) {
  prefetch_map(&w_map), prefetch_map(&scale_map), prefetch_map(&zero_map);
  const int groups = max(kStage / p.group_size, 1);                 // in a stage
  const int stages = max((p.group_size + kStage - 1) / kStage, 1);  // in a group
  const uint32_t bytes = L::kWBytes + 2 * groups * kRows * sizeof(S);
  Ring<kWStages> w;
  each_segment(p.segments, rest, [&](const Segment& segment) {
    const int row = tile_of(p.tiles, segment.tile, kTokens).row;
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

template <class L, int kTokens, int kXStages, class Arguments>
__device__ inline void copy_input(const Arguments& p, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                  const CUtensorMap& x_map) {
  prefetch_map(&x_map);
  Ring<kXStages> x;
  each_segment(p.segments, rest, [&](const Segment& segment) {
    const int token = tile_of(p.tiles, segment.tile, kTokens).token, end = (segment.first_stage + segment.stages) * kStage;
#pragma unroll 1
    for (int k = segment.first_stage * kStage; k < end; k += kStep) {
      barrier_wait(empty + 8 * x.slot(), x.parity() ^ 1);
      barrier_expect(full + 8 * x.slot(), L::kXBytes);
      copy_tile(shared + L::kX + x.slot() * L::kXBytes, &x_map, full + 8 * x.slot(), k, token);
      x.advance();
    }
  });
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
               const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap zero_map,
               const Arguments<T> p) {
  using L = Layout<T, S, kTokens, kXStages, kWStages>;
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

      if constexpr (kWays == 2) add_pairs<T, kTokens>(sums, me, shared + L::kOut);
      const Tile tile = tile_of(p.tiles, segment.tile, kTokens);
      const bool whole = segment.stages == p.segments.stages;
      if (!whole && p.segments.cluster > 1)
        write_cluster_tile<kTokens, kWays * kPair>(sums, me, p.epilogue, tile, shared);
      else if (me.way == 0 && (whole || meet(sums, p.segments, rest, segment, threadIdx.x, kPair, 4)))
        write_tile<kTokens>(sums, me, p.epilogue, tile, shared + L::kOut);
    });
  }
  if (p.segments.cluster > 1) cluster_sync();  // nobody leaves while others still read from here
}

}  // namespace aoext::cuda::wgmma
