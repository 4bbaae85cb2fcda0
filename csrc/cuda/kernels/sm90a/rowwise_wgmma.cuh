// 8-bit products on Hopper: y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], x and w both int8, e4m3 or e5m2.
//
// What it computes with. wgmma takes both operands from shared memory as the copy engine brought them. w is the left one: a
// warpgroup multiplies 64 rows by up to 256 rows of x, so y comes transposed, and few rows of x still fill the instruction.
//
// How it walks memory. A block takes 64, 128 or 256 rows of w by kTokens rows of x: a warpgroup for 64 rows, and one thread that
// copies stages of 128 k, a 128-byte line of each row. For 128 by 256 a stage is 48 KiB against 1024 cycles of the matrix
// engine; with few rows of x some 160 KiB of w are on their way to a multiprocessor. Where tiles do not come out even over the
// blocks, the last of them are shared along K (segments.h).
//
// What it adds up in. int8: int32, exact. float8: the engine keeps about 14 bits of a sum, cut off and not rounded, so after
// some stages a float32 in other registers takes it over, of one warpgroup while the others multiply.
#pragma once

#include <type_traits>

#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kStageBytes = 128;  // of K, a line of w and of x: as many elements

struct RowwiseArguments {
  RowwiseLinear p;
  Tiles tiles;
  Segments segments;  // what lies outside K in the last stage is zero
  int batch, first, ahead, hint;
};

// ---- Shared memory ----

template <class Output, int kTileRows, int kTokens, int kStages>
struct RowwiseLayout {
  static constexpr int kGroups = kTileRows / 64;  // warpgroups that multiply
  static constexpr int kWBytes = kTileRows * kStageBytes, kXBytes = kTokens * kStageBytes;
  static constexpr int kStage = kWBytes + kXBytes;  // w, then x
  static constexpr int kOut = kStages * kStage;
  static constexpr int kOutBytes = Staging<Output, kTokens, kGroups>::kBytes;
  static constexpr int kChannels = kOut + kOutBytes;
  static constexpr int kRowScales = kChannels + kTileRows * int(sizeof(Channel));  // a copy for each warpgroup
  static constexpr int kBarriers = kRowScales + kGroups * kTokens * 4;
  static constexpr int kBytes = kBarriers + 2 * 8 * kStages + 1024;  // the copy engine's alignment
  // A tile that the blocks of a cluster add up lies over the ring.
  static_assert(kStages == 0 || kTokens * sum_pitch(kTileRows) <= kOut);
};

// ---- From sums to y ----

// Scales and bias come from shared memory, where they arrive while the tile is multiplied.
template <class S, class O>
struct RowwiseEpilogue {
  using Sum = S;
  using Output = O;
  static constexpr bool kWholeVectors = false;
  Output* y;
  int M, N;
  bool raw;  // y is the sum
  Tile tile;
  uint32_t channels, row_scales;

  __device__ Channel channel(int n) const {
    const float2 c = load_shared_pair(channels + (n - tile.row) * int(sizeof(Channel)));
    return {c.x, c.y};
  }
  __device__ float token(int m) const { return load_shared(row_scales + (m - tile.token) * 4); }
  __device__ float operator()(Sum sum, float row_scale, const Channel& c) const {
    if constexpr (std::is_same_v<Sum, int> && std::is_same_v<Output, float>)
      if (raw) return bits<float>(sum);
    return scaled(sum, row_scale, c);
  }
};

// What a thread brings of them: loaded before the products, stored behind them.
template <int kTokens>
struct Scales {
  static constexpr int kRowScales = (kTokens + 127) / 128;
  Channel channel;
  float row_scales[kRowScales];

  __device__ void load(const RowwiseLinear& p, const Tile& tile, int group, int thread) {
    const int n = tile.row + group * 64 + thread;
    channel = thread < 64 && n < p.N ? load_channel(p, n) : Channel{};
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int at = thread + i * 128;
      row_scales[i] = at < kTokens && tile.token + at < p.M ? load_row_scale(p, tile.token + at) : 0;
    }
  }

  __device__ void store(uint32_t channels, uint32_t my_row_scales, int group, int thread) const {
    if (thread < 64)
      store_shared_pair(channels + (group * 64 + thread) * int(sizeof(Channel)), {channel.scale, channel.bias});
#pragma unroll
    for (int i = 0; i < kRowScales; ++i)
      if (thread + i * 128 < kTokens) store_shared(my_row_scales + (thread + i * 128) * 4, row_scales[i]);
  }
};

// ---- The kernel ----

// Issues d (+)= a stage's product, or that of some of its steps of 32 k.
template <Element kType, int kFirst, int kEnd, class Sum, int kSums>
__device__ inline void multiply(Sum (&d)[kSums], uint64_t w, uint64_t x, bool add) {
  wgmma_fence();
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step)
    Wgmma<2 * kSums>::multiply(std::integral_constant<Element, kType>(), d, w + 2 * step, x + 2 * step, add || step > kFirst);
  wgmma_commit();
}

// Sums that a product has left: what reads them stays behind the wait for it.
template <int kCount>
__device__ inline void settle(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

template <int kCount>
__device__ inline void settle(int (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

// Rows of 128 bytes as the copy engine swizzles them, eight to a tile of 1024.
__device__ inline uint64_t swizzled_descriptor(uint32_t address) {
  return uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 16 | (address & 0x3ffff) >> 4;
}

// Registers of a thread that copies and of one that multiplies: as many as a multiprocessor has, in whole warpgroups. Blocks of one
// warpgroup share it with another, and have enough.
template <int kGroups>
struct RowwiseRegisters {
  static constexpr int kCopy = kGroups == 2 ? 40 : 24, kMultiply = kGroups == 2 ? 232 : 112;
  __device__ static void for_copies() { release_registers<kCopy>(); }
  __device__ static void for_products() { claim_registers<kMultiply>(); }
};

template <>
struct RowwiseRegisters<1> {
  __device__ static void for_copies() {}
  __device__ static void for_products() {}
};

constexpr int rowwise_threads(int rows) { return rows * 2 + (rows == 64 ? 32 : 128); }

template <Element kType, class Output, int kTileRows, int kTokens, int kStages, int kBlocks>
__global__ void __launch_bounds__(rowwise_threads(kTileRows), kBlocks)
    rowwise_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap lines_map, const __grid_constant__ RowwiseArguments a) {
  using L = RowwiseLayout<Output, kTileRows, kTokens, kStages>;
  using Sum = WgmmaSum<kType>;
  constexpr int kThreads = kTileRows * 2;  // that multiply
  const Segments& s = a.segments;
  extern __shared__ char unaligned[];
  __shared__ Rest rest;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, kThreads / 32);
    }
    barrier_init_fence();
    rest.find(s);
  }
  __syncthreads();

  // Where counters are cleared, that kernel has waited for what came before, and only meet() depends on it.
  const bool waits = s.ranges == 0;
  Ring<kStages> ring;
  if (warp >= kThreads / 32) {
    RowwiseRegisters<L::kGroups>::for_copies();
    if (threadIdx.x == kThreads) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const Segment first = int(blockIdx.x) < s.whole_tiles ? Segment{int(blockIdx.x), 0, s.stages} : rest.segments[0];
      prefetch_map(&lines_map);
      const int batch = min(a.batch, kStages / 2);
      const int row = tile_of(a.tiles, first.tile, kTokens, kTileRows).row;
      for (int stage = first.first_stage; stage < first.first_stage + min(first.stages, a.first); stage += 4)
        prefetch_tile(&lines_map, stage * 32, row);
      if (waits) wait_for_last_kernel(), start_next_kernel();
      each_segment(s, rest, [&](const Segment& segment) {
        const Tile tile = tile_of(a.tiles, segment.tile, kTokens, kTileRows);
        const int end = segment.first_stage + segment.stages;
        int line = segment.first_stage;
#pragma unroll 1
        for (int stage = segment.first_stage; stage < end; stage += batch) {
          if (a.ahead)
            for (; line < min(end, stage + a.ahead); line += 4) prefetch_tile(&lines_map, line * 32, tile.row);
          const int count = min(batch, end - stage);
          Ring<kStages> r = ring;
          for (int i = 0; i < count; ++i) {
            barrier_wait(empty + 8 * r.slot(), r.parity() ^ 1);
            barrier_expect(full + 8 * r.slot(), L::kStage);
            r.advance();
          }
          r = ring;
          for (int i = 0; i < count; ++i) {
            if (a.hint)
              copy_tile(shared + r.slot() * L::kStage, &w_map, full + 8 * r.slot(), (stage + i) * kStageBytes, tile.row, kEvictFirst);
            else
              copy_tile(shared + r.slot() * L::kStage, &w_map, full + 8 * r.slot(), (stage + i) * kStageBytes, tile.row);
            r.advance();
          }
          for (int i = 0; i < count; ++i) {
            copy_tile(shared + ring.slot() * L::kStage + L::kWBytes, &x_map, full + 8 * ring.slot(), (stage + i) * kStageBytes, tile.token);
            ring.advance();
          }
        }
      });
      if (!waits) wait_for_last_kernel(), start_next_kernel();
    }
    __syncwarp();
    if (s.cluster > 1 && rest.segments[0].stages > 0) cluster_sync();  // with those who add up
  } else {
    RowwiseRegisters<L::kGroups>::for_products();
    if (waits) wait_for_last_kernel();
    const int thread = threadIdx.x % 128;
    const Thread me = {0, warp / 4, lane, lane % 4, warp * 16};
    const uint32_t row_scales = shared + L::kRowScales + me.group * kTokens * 4;
    Sum sums[kTokens / 2];

    const auto free = [&](int slot) {
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slot);
    };
    // Of the present stage: this warpgroup's rows of w, and x from a token on.
    const auto w_at = [&] { return swizzled_descriptor(shared + ring.slot() * L::kStage + me.group * 64 * kStageBytes); };
    const auto x_at = [&](int token) {
      return swizzled_descriptor(shared + ring.slot() * L::kStage + L::kWBytes + token * kStageBytes);
    };
    const auto arrived = [&] { barrier_wait(full + 8 * ring.slot(), ring.parity()); };
    constexpr int kSteps = kStageBytes / 32, kPiece = kTokens <= 128 ? kSteps / 2 : kSteps;

    each_segment(s, rest, [&](const Segment& segment) {
      const Tile tile = tile_of(a.tiles, segment.tile, kTokens, kTileRows);
      Scales<kTokens> scales;
      scales.load(a.p, tile, me.group, thread);
      if constexpr (kType == Element::int8) {
        int previous = 0;
#pragma unroll 1
        for (int i = 0; i < segment.stages; ++i) {
          arrived();
          multiply<kType, 0, kSteps>(sums, w_at(), x_at(0), i > 0);
          wgmma_wait<1>();
          if (i > 0) free(previous);
          previous = ring.slot();
          ring.advance();
        }
        wgmma_wait<0>();
        settle(sums);
        free(previous);
      } else if constexpr (kTokens * kTileRows <= 128 * 128 && !(kTokens == 128 && kTileRows == 64)) {
        // While the second half of a stage runs, the first is added; while the second is, another warpgroup multiplies.
        Sum parts[2][kTokens / 2];
        const auto add = [&](Sum(&part)[kTokens / 2]) {
          settle(part);
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) sums[i] += part[i];
        };
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
#pragma unroll 1
        for (int i = 0; i < segment.stages; ++i) {
          arrived();
          multiply<kType, 0, kPiece>(parts[0], w_at(), x_at(0), false);
          multiply<kType, kPiece, kSteps>(parts[1], w_at(), x_at(0), false);
          wgmma_wait<1>();
          add(parts[0]);
          wgmma_wait<0>();
          free(ring.slot());
          ring.advance();
          add(parts[1]);
        }
      } else {
        // There are registers for the product of half the tokens.
        constexpr int kHalf = kTokens / 2;
        Sum part[kHalf / 2];
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
#pragma unroll 1
        for (int i = 0; i < segment.stages; ++i) {
          arrived();
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int piece = 0; piece < kSteps / kPiece; ++piece) {
              if (piece == 0)
                multiply<kType, 0, kPiece>(part, w_at(), x_at(half * kHalf), false);
              else
                multiply<kType, kSteps - kPiece, kSteps>(part, w_at(), x_at(half * kHalf), false);
              wgmma_wait<0>();
              if (half == 1 && piece + 1 == kSteps / kPiece) free(ring.slot());
              settle(part);
#pragma unroll
              for (int j = 0; j < kHalf / 2; ++j) sums[half * kHalf / 2 + j] += part[j];
            }
          }
          ring.advance();
        }
      }
      scales.store(shared + L::kChannels, row_scales, me.group, thread);
      sync_threads_of(2 + me.group, 128);

      const RowwiseEpilogue<Sum, Output> epilogue = {static_cast<Output*>(a.p.y),      int(a.p.M), int(a.p.N),
                                                     a.p.output == Element::int32, tile,       shared + L::kChannels,
                                                     row_scales};
      const bool whole = segment.stages == s.stages;
      if (!whole && s.cluster == 2)
        write_cluster_tile<kTokens, kThreads, 2, kTileRows>(sums, me, epilogue, tile, shared);
      else if (!whole && s.cluster == 4)
        write_cluster_tile<kTokens, kThreads, 4, kTileRows>(sums, me, epilogue, tile, shared);
      else if (whole || meet(sums, s, rest, segment, threadIdx.x, kThreads, 6))
        write_tile<kTokens>(sums, me, epilogue, tile, shared + L::kOut);
    });
  }
  if (s.cluster > 1) cluster_sync();  // nobody leaves while others still read from here
}

}  // namespace aoext::cuda::wgmma
