// 8-bit products on Hopper: y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], x and w both int8, e4m3 or e5m2.
//
// What it computes with. wgmma takes both operands from shared memory as the copy engine brought them. w is the left one: a
// warpgroup multiplies 64 rows by up to 256 rows of x, so y comes transposed, and few rows of x still fill the instruction.
//
// How it walks memory. A block takes 128 or 64 rows of w by kTokens rows of x: two warpgroups multiply, each 64 rows, or half of
// the tokens of the same 64, and a thread of a third one copies stages of 128 k, a 128-byte line of each row. For 128 by 256 a
// stage is 48 KiB against 1024 cycles of the matrix engine; with few rows of x 128 KiB of w and more are on their way to a
// multiprocessor, to one block or to two small ones, whose beginnings and ends hide behind each other. Where tiles do not come
// out even over the blocks, the last of them are shared along K (segments.h). Two blocks may form a pair, neighbours along N,
// that reads x from L2 once: they take turns in copying a stage of x to both.
//
// What it adds up in. int8: int32, exact. float8: the engine keeps 14 bits of a sum and cuts off the rest, so every 64 or 128 k
// float32 in other registers takes it over. Of random positive numbers a row is off by 2e-4 after 64 k, 7e-4 after 128, 2e-3
// after 256, 6e-3 after 512, however long K is. While one warpgroup adds, the other multiplies.
#pragma once

#include <type_traits>

#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kSteps = kLine / 32;  // an instruction takes 32 k
constexpr int kEarly = 4;           // stages of w that L2 is asked for while the last kernel ends

struct RowwiseArguments {
  RowwiseLinear p;
  Tiles tiles;
  Segments segments;  // what lies outside K in the last stage is zero
  int ring;           // stages that a block has on the way
  bool pairs;         // neighbouring blocks copy x for both
  int copy_tokens;    // rows of x that are copied at once
  uint64_t w_policy;  // of L2
};

// ---- Shared memory ----

template <class Output, int kTileRows, int kTokens>
struct RowwiseLayout {
  static_assert(kTileRows == kRows || kTileRows == kRows / 2);
  static constexpr int kGroupTokens = kTokens * kTileRows / kRows;  // of a warpgroup
  static constexpr int kWBytes = kTileRows * kLine, kXBytes = kTokens * kLine;
  static constexpr int kStage = kWBytes + kXBytes;  // w, then x
  // Behind the ring of stages: a warpgroup has channels and row scales of its own.
  using S = Staging<Output, kGroupTokens>;
  static constexpr int kChannels = 2 * S::kBuffers * S::kBufferBytes;
  static constexpr int kRowScales = kChannels + kRows * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kTokens * int(sizeof(float));
  static constexpr int kAlignment = 1024;  // the copy engine's

  static constexpr int bytes(int ring) { return kAlignment + ring * (kStage + 2 * 8) + kBarriers; }
  // So many stages that fit in this memory. A tile that the blocks of a cluster add up must fit into them.
  static constexpr int ring(int memory) { return (memory - bytes(0)) / (kStage + 2 * 8); }
  static constexpr int kLeast = (kGroupTokens * kSumPitch + kStage - 1) / kStage;
};

// Blocks that a multiprocessor has registers for, two where sums are few.
template <int kGroupTokens>
constexpr int kMostBlocks = kGroupTokens <= 32 ? 2 : 1;

// ---- From sums to y ----

template <class S, class O>
struct RowwiseEpilogue {
  using Sum = S;
  using Output = O;
  static constexpr bool kWholeVectors = false;
  Output* y;
  int M, N;
  bool as_is;  // y is the sum
  Tile tile;
  uint32_t channels, row_scales;  // in shared memory, of the tile, as this warpgroup has them

  __device__ Channel channel(int n) const {
    const float2 c = load_shared_pair(channels + (n - tile.row) * int(sizeof(Channel)));
    return {c.x, c.y};
  }
  __device__ float token(int m) const { return load_shared(row_scales + (m - tile.token) * int(sizeof(float))); }
  __device__ float operator()(Sum sum, float row_scale, const Channel& c) const {
    if constexpr (std::is_same_v<Sum, int> && std::is_same_v<Output, float>)
      if (as_is) return bits<float>(sum);
    return scaled(sum, row_scale, c);
  }
};

// What a thread brings of scales and bias: loaded before the tile is multiplied, stored after it.
template <int kTokens>
struct Scales {
  static constexpr int kRowScales = (kTokens + 127) / 128;
  Channel channel;
  float row_scales[kRowScales];

  __device__ void load(const RowwiseLinear& p, const Tile& tile, int group, int thread) {
    const int n = tile.row + group * tile.group_rows + thread;
    channel = thread < 64 && n < p.N ? load_channel(p, n) : Channel{};
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int token = thread + i * 128;
      row_scales[i] = token < kTokens && tile.token + token < p.M ? load_row_scale(p, tile.token + token) : 0;
    }
  }

  __device__ void store(uint32_t my_channels, uint32_t my_row_scales, int thread) const {
    if (thread < 64) store_shared_pair(my_channels + thread * int(sizeof(Channel)), {channel.scale, channel.bias});
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int token = thread + i * 128;
      if (token < kTokens) store_shared(my_row_scales + token * int(sizeof(float)), row_scales[i]);
    }
  }
};

// ---- Products ----

// Issues d (+)= the product of a stage, or of some of its steps.
template <Element kType, int kFirst, int kEnd, class Sum, int kSums>
__device__ inline void multiply(Sum (&d)[kSums], uint64_t w, uint64_t x, bool add) {
  wgmma_fence();
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step)
    Wgmma<2 * kSums>::multiply(std::integral_constant<Element, kType>(), d, w + 2 * step, x + 2 * step, add || step > kFirst);
  wgmma_commit();
}

// What reads sums stays behind the wait for the product that leaves them.
template <class Sum, int kSums>
__device__ inline void settle(Sum (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if constexpr (std::is_same_v<Sum, int>)
      asm volatile("" : "+r"(sums[i])::"memory");
    else
      asm volatile("" : "+f"(sums[i])::"memory");
  }
}

template <int kCount>
__device__ inline void add(float* sums, const float (&part)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] += part[i];
}

// ---- The kernel ----

constexpr int kRowwiseThreads = kPair + 128;                  // registers go to whole warpgroups
constexpr int kCopyRegisters = 32;                            // of a thread
template <int kBlocks>
constexpr int kMultiplyRegisters = kBlocks == 1 ? 232 : 104;

// A place in a block's ring, and the parity of its present round.
struct Place {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(int ring) {
    if (++slot == ring) slot = 0, parity ^= 1;
  }
};

// One thread: stages of w and x into the ring.
template <class L, int kTileRows, int kTokens>
__device__ inline void copy_stages(const RowwiseArguments& a, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                   const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Place at;
  each_segment(a.segments, rest, [&](const Segment& segment) {
    const Tile tile = tile_of(a.tiles, segment.tile, kTokens, kTileRows);
    // Copies that lie beyond M are left out, since the engine is slow to fill in what a tensor does not have (192 rows took
    // longer than 256). Those rows keep what they had, and their outputs go nowhere.
    const int rows = min(kTokens, int(a.p.M) - tile.token);
    const int tokens = (rows + a.copy_tokens - 1) / a.copy_tokens * a.copy_tokens;
    const int end = (segment.first_stage + segment.stages) * kLine;
#pragma unroll 1
    for (int k = segment.first_stage * kLine; k < end; k += kLine) {
      const uint32_t arrived = full + 8 * at.slot, to = shared + at.slot * L::kStage;
      barrier_wait(empty + 8 * at.slot, at.parity ^ 1);
      barrier_expect(arrived, L::kWBytes + tokens * kLine);
      copy_tile(to, &w_map, arrived, k, tile.row, a.w_policy);
      at.advance(a.ring);
      if (a.pairs && (k / kLine + int(blockIdx.x)) % 2 != 0) continue;  // the other's turn
#pragma unroll 1
      for (int token = 0; token < tokens; token += a.copy_tokens) {
        const uint32_t x = to + L::kWBytes + token * kLine;
        if (a.pairs)
          copy_tile_to(3, x, &x_map, arrived, k, tile.token + token);
        else
          copy_tile(x, &x_map, arrived, k, tile.token + token);
      }
    }
  });
}

template <Element kType, class Output, int kTileRows, int kTokens>
__global__ void __launch_bounds__(kRowwiseThreads, kMostBlocks<RowwiseLayout<Output, kTileRows, kTokens>::kGroupTokens>)
    rowwise_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ RowwiseArguments a) {
  using L = RowwiseLayout<Output, kTileRows, kTokens>;
  constexpr int kMine = L::kGroupTokens;
  using Sum = WgmmaSum<kType>;
  const Segments& s = a.segments;
  extern __shared__ char unaligned[];
  __shared__ Rest rest;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t behind = shared + a.ring * L::kStage, full = behind + L::kBarriers, empty = full + 8 * a.ring;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < a.ring; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, a.pairs ? 2 * kPairWarps : kPairWarps);
    }
    barrier_init_fence();
    rest.find(s);
  }
  if (a.pairs)
    cluster_sync();
  else
    __syncthreads();

  // Where counters are cleared, that kernel has waited for what came before, and only meet() depends on it.
  const bool waits = s.ranges == 0;
  if (warp >= kPairWarps) {
    release_registers<kCopyRegisters>();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const Segment first = int(blockIdx.x) < s.whole_tiles ? Segment{int(blockIdx.x), 0, s.stages} : rest.segments[0];
      const int row = tile_of(a.tiles, first.tile, kTokens, kTileRows).row;
      for (int i = 0; i < min(first.stages, kEarly); ++i) prefetch_tile(&w_map, (first.first_stage + i) * kLine, row);
      if (waits) wait_for_last_kernel(), start_next_kernel();
      copy_stages<L, kTileRows, kTokens>(a, rest, shared, full, empty, x_map, w_map);
      if (!waits) wait_for_last_kernel(), start_next_kernel();
    }
    __syncwarp();
    if (s.cluster > 1 && rest.segments[0].stages > 0) cluster_sync();  // with those who add up
  } else {
    claim_registers<kMultiplyRegisters<kMostBlocks<kMine>>>();
    if (waits) wait_for_last_kernel();
    const int thread = threadIdx.x % 128;
    const Thread me = {0, warp / 4, lane, lane % 4, warp * 16};
    constexpr bool kHigh = kTileRows == kRows;  // the warpgroups' rows lie above each other
    const uint32_t channels = behind + L::kChannels + me.group * 64 * int(sizeof(Channel)),
                   row_scales = behind + L::kRowScales + me.group * kTokens * int(sizeof(float));
    const uint32_t my_w = shared + (kHigh ? me.group * 64 * kLine : 0),
                   my_x = shared + L::kWBytes + (kHigh ? 0 : me.group * kMine * kLine);
    const uint32_t empty_there = a.pairs ? remote_address(empty, blockIdx.x % 2 ^ 1) : 0;
    Place at;
    Sum sums[kMine / 2];

    const auto wait = [&] { barrier_wait(full + 8 * at.slot, at.parity); };
    const auto free = [&](int slot) {
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slot);
      if (a.pairs && lane == 0) barrier_arrive_remote(empty_there + 8 * slot);
    };
    // Of the present stage: this warpgroup's rows of w, and x from one of its tokens on.
    const auto w = [&] { return matrix_of_lines(lines_descriptor(my_w + at.slot * L::kStage)); };
    const auto x = [&](int token) { return matrix_of_lines(lines_descriptor(my_x + at.slot * L::kStage + token * kLine)); };

    each_segment(s, rest, [&](const Segment& segment) {
      const Tile tile = tile_of(a.tiles, segment.tile, kTokens, kTileRows);
      Scales<kTokens> scales;
      scales.load(a.p, tile, me.group, thread);
      if constexpr (kType == Element::int8) {
        int previous = 0;  // slot
#pragma unroll 1
        for (int i = 0; i < segment.stages; ++i) {
          wait();
          multiply<kType, 0, kSteps>(sums, w(), x(0), i > 0);
          wgmma_wait<1>();
          if (i > 0) free(previous);
          previous = at.slot;
          at.advance(a.ring);
        }
        wgmma_wait<0>();
        settle(sums);
        free(previous);
      } else {
        // Two products of a stage, by halves of its k, or of its tokens where registers are for half of them alone.
        constexpr bool kNarrow = kMine <= 128;
        constexpr int kPart = kNarrow ? kMine / 2 : kMine / 4;
#pragma unroll
        for (int i = 0; i < kMine / 2; ++i) sums[i] = 0;
#pragma unroll 1
        for (int i = 0; i < segment.stages; ++i) {
          wait();
          if constexpr (kNarrow) {
            Sum first[kPart], second[kPart];
            multiply<kType, 0, kSteps / 2>(first, w(), x(0), false);
            multiply<kType, kSteps / 2, kSteps>(second, w(), x(0), false);
            wgmma_wait<1>();
            settle(first);
            add(sums, first);
            wgmma_wait<0>();
            free(at.slot);
            settle(second);
            add(sums, second);
          } else {
            Sum part[kPart];
            multiply<kType, 0, kSteps>(part, w(), x(0), false);
            wgmma_wait<0>();
            settle(part);
            add(sums, part);
            multiply<kType, 0, kSteps>(part, w(), x(kMine / 2), false);
            wgmma_wait<0>();
            free(at.slot);
            settle(part);
            add(sums + kPart, part);
          }
          at.advance(a.ring);
        }
      }
      scales.store(channels, row_scales, thread);
      sync_threads_of(2 + me.group, 128);

      const RowwiseEpilogue<Sum, Output> epilogue = {
          static_cast<Output*>(a.p.y), int(a.p.M), int(a.p.N), a.p.output == Element::int32, tile,
          kHigh ? behind + L::kChannels : channels, row_scales};
      const bool whole = segment.stages == s.stages;
      if (!whole && s.cluster > 1)
        write_cluster_tile<2, kMine, kPair>(sums, me, epilogue, tile, shared);
      else if (whole || meet(sums, s, rest, segment, threadIdx.x, kPair, 4))
        write_tile<kMine>(sums, me, epilogue, tile, behind);
    });
  }
  if (s.cluster > 1 || a.pairs) cluster_sync();  // nobody leaves while others still read from here, or copy to here
}

}  // namespace aoext::cuda::wgmma
