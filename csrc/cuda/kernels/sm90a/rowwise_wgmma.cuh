// 8-bit products on Hopper: y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], x and w both int8, e4m3 or e5m2.
//
// What it computes with. wgmma takes both operands from shared memory as the copy engine brought them. w is the left one: a
// warpgroup multiplies 64 rows by up to 256 rows of x, so y comes transposed, and few rows of x still fill the instruction.
// In turned tiles x is the left one, 128 rows of it, and the rows of w are its columns, of which the engine takes any multiple of
// 8: tiles that come out even over the blocks then cost what they hold.
//
// How it walks memory. A block takes 128 or 64 rows of w by kTokens rows of x, in stages of 128 k, a 128-byte line of each row.
// So that tiles come out even over the blocks, they may have fewer rows, beside which the engine multiplies what memory holds.
// Two warpgroups multiply: of high tiles each has 64 rows; of low ones they take turns with the stages and share out the tokens
// at the end. A thread of a third one copies, or one w and another x where stages are small, since to ask for a copy takes
// 0.1 µs. For 128 by 256 a stage is 48 KiB against 1024 cycles of the matrix engine; with few rows of x 128 KiB of w and more
// are on their way to a multiprocessor. Where tiles do not come out even over the blocks, the last of them are shared along K
// (tile_scheduler.h).
//
// What it adds up in. int8: int32, exact. float8: the engine keeps 14 bits of a sum and cuts off the rest, so every 128 k, or 64
// where results are fp16, float32 in other registers takes it over. Of random positive numbers a row is off by 2e-4 after 64 k,
// 7e-4 after 128, 2e-3 after 256, 6e-3 after 512, however long K is. While one warpgroup adds, the other multiplies.
//
// What was tried and not kept: benchmarks/cuda.md.
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
  TileScheduler schedule;  // what lies outside K in the last stage is zero
  int rows;                // of w in a tile, as many as the kernel is for or fewer
  int copy_tokens;         // rows of x that are copied at once
  uint64_t w_policy;       // of L2
};

// ---- Shared memory ----

// Tiles whose rows of w are not those of one warpgroup or of two are turned.
constexpr bool is_turned(int tile_rows) { return tile_rows != kRows && tile_rows != kRows / 2; }

template <class Output, int kTileRows, int kTokens, int kStages>
struct RowwiseLayout {
  static constexpr bool kTurned = is_turned(kTileRows);
  static constexpr int kTurns = kTileRows == kRows / 2 ? 2 : 1;  // that warpgroups take with stages
  static_assert(kStages % kTurns == 0);
  static_assert(kTurned ? kTokens == kRows : kTileRows == kRows || kTileRows == kRows / 2);
  static constexpr int kChannelsOfGroup = kTurned ? kTileRows : 64,
                       kTokensOfGroup = kTurned ? 64 : kTokens;            // that it multiplies
  static constexpr int kMine = kTurned ? 0 : kTokens * kTileRows / kRows;  // tokens of a warpgroup as the tile leaves
  static constexpr int kWBytes = kTileRows * kLine, kXBytes = kTokens * kLine;
  static constexpr int kStage = kWBytes + kXBytes;  // w, then x
  static constexpr int kStaging = kStages * kStage;
  using S = Staging<Output, kMine>;
  using Shared = Sharing<kTokens, 4>;
  static constexpr int kStagingBytes = std::max(2 * S::kBuffers * S::kBufferBytes, kTurns == 2 ? Shared::kBytes : 0);
  static constexpr int kChannels = kStaging + kStagingBytes;  // of each warpgroup its own, as are row scales
  static constexpr int kRowScales = kChannels + 2 * kChannelsOfGroup * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kTokensOfGroup * int(sizeof(float));
  static constexpr int kClusterBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kBytes = kClusterBarriers + kClusterBarrierBytes + 1024;  // the copy engine's alignment
  // What the blocks of a cluster send lies over the ring; those of turned tiles send nothing.
  using Shares = ClusterShares<Output, (kTurned ? 32 : kMine), 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

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
template <class L>
struct Scales {
  static constexpr int kChannels = (L::kChannelsOfGroup + 127) / 128, kRowScales = (L::kTokensOfGroup + 127) / 128;
  Channel channels[kChannels];
  float row_scales[kRowScales];

  __device__ void load(const RowwiseLinear& p, const Tile& tile, int group, int thread) {
    const int first_row = tile.row + group * tile.group_rows, first_token = tile.token + (L::kTurned ? group * 64 : 0);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int row = thread + i * 128;
      channels[i] = row < L::kChannelsOfGroup && first_row + row < p.N ? load_channel(p, first_row + row) : Channel{};
    }
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int token = thread + i * 128;
      row_scales[i] = token < L::kTokensOfGroup && first_token + token < p.M ? load_row_scale(p, first_token + token) : 0;
    }
  }

  __device__ void store(uint32_t my_channels, uint32_t my_row_scales, int thread) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int row = thread + i * 128;
      if (row < L::kChannelsOfGroup) store_shared(my_channels + row * int(sizeof(Channel)), channels[i].scale, channels[i].bias);
    }
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int token = thread + i * 128;
      if (token < L::kTokensOfGroup) store_shared(my_row_scales + token * int(sizeof(float)), row_scales[i]);
    }
  }
};

// A warpgroup's 64 tokens by kColumns rows of w. Registers hold pieces of two outputs of a row of y, a quad eight of them: for
// four octets of columns its lanes exchange those of 16 bits, so that each stores 16 bytes and a quad 64 side by side.
template <int kColumns, class Epilogue, class Sum>
__device__ inline void write_turned_tile(const Sum (&sums)[kColumns / 2], const Thread& me, const Epilogue& epilogue,
                                         const Tile& tile) {
  using Output = typename Epilogue::Output;
  constexpr int kOctets = kColumns / 8, kAtOnce = 4;
  const int upper = tile.token + me.row(), end = min(epilogue.N, tile.end);
  const decltype(epilogue.token(upper)) tokens[2] = {epilogue.token(upper), epilogue.token(upper + 8)};
  const auto store = [&](int half, int n, const auto& outputs) {
    const int m = upper + 8 * half;
    if (m < epilogue.M && n < end) store_outputs<false>(epilogue.y + int64_t(m) * epilogue.N, n, epilogue.N, outputs);
  };
#pragma unroll
  for (int first = 0; first < kOctets; first += kAtOnce) {
    uint32_t pieces[2][kAtOnce] = {};
#pragma unroll
    for (int octet = first; octet < min(first + kAtOnce, kOctets); ++octet) {
      const int n = tile.row + 8 * octet + 2 * me.quad;
      const auto left = epilogue.channel(n), right = epilogue.channel(n + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * octet + 2 * half;
        const float a = epilogue(sums[i], tokens[half], left), b = epilogue(sums[i + 1], tokens[half], right);
        if constexpr (sizeof(Output) == 2)
          pieces[half][octet - first] = rounded_pair<Output>(a, b);
        else
          store(half, n, float2{a, b});
      }
    }
    if constexpr (sizeof(Output) == 2) {
      const int octet = first + me.quad;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t (&v)[kAtOnce] = pieces[half];
        transpose_quad(v, me.quad);
        if (octet < kOctets) store(half, tile.row + 8 * octet, uint4{v[0], v[1], v[2], v[3]});
      }
    }
  }
  sync_threads_of(kGroupBarrier + me.group, 128);  // scales and bias may be written again
}

// ---- Products ----

// Issues d (+)= the product of a stage, or of some of its steps.
template <Element kType, int kFirst, int kEnd, class Sum, int kSums>
__device__ inline void multiply(Sum (&d)[kSums], uint64_t left, uint64_t right, bool add) {
  wgmma_fence();
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step)
    Wgmma<2 * kSums>::multiply(std::integral_constant<Element, kType>(), d, left + 2 * step, right + 2 * step,
                               add || step > kFirst);
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
constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;  // of a thread

// One thread: stages of w, of x, or of both into the ring.
template <class L, int kTileRows, int kTokens, int kStages, bool kW, bool kX>
__device__ inline void copy_stages(const RowwiseArguments& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                   uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  for_each_work<false>(a.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(a.tiles, work.tile, kTokens, a.rows);
    const int tokens = copied_tokens(a.p.M, tile, kTokens, a.copy_tokens);
    const int end = (work.first_k_tile + work.k_tiles) * kLine;
#pragma unroll 1
    for (int k = work.first_k_tile * kLine; k < end; k += kLine) {
      const uint32_t arrived = full + 8 * ring.full(), to = shared + ring.slot() * L::kStage;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if (kW) {
        barrier_expect(arrived, (a.rows + tokens) * kLine);
        copy_tile(to, &w_map, arrived, k, tile.row, a.w_policy);
      }
#pragma unroll 1
      for (int token = 0; kX && token < tokens; token += a.copy_tokens)
        copy_tile(to + L::kWBytes + token * kLine, &x_map, arrived, k, tile.token + token);
      ring.advance();
    }
  });
}

template <Element kType, class Output, int kTileRows, int kTokens, int kStages>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    rowwise_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ RowwiseArguments a) {
  using L = RowwiseLayout<Output, kTileRows, kTokens, kStages>;
  constexpr bool kHigh = L::kTurns == 1;  // the warpgroups' rows lie above each other; else they take turns with stages
  constexpr int kColumns = L::kTurned ? kTileRows : kTokens;
  constexpr int kMine = L::kMine, kTurns = L::kTurns;
  using Sum = WgmmaSum<kType>;
  const TileScheduler& s = a.schedule;
  extern __shared__ char unaligned[];
  __shared__ BlockWork block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, kPairWarps / kTurns * kArrivals);
    }
    if (s.cluster > 1) init_cluster_barriers(shared + L::kClusterBarriers, s.cluster);
    barrier_init_fence();
    block_work.find(s);
  }
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_stages<L, kTileRows, kTokens, kStages, of_w, of_x>(a, block_work, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const WorkTile first = first_work(s, block_work);
      const int row = tile_of(a.tiles, first.tile, kTokens, a.rows).row;
      for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * kLine, row);
      wait_for_last_kernel(), start_next_kernel();
      copy(kYes, std::bool_constant<kHigh>());
    } else if (!kHigh && threadIdx.x == kPair + 32) {
      wait_for_last_kernel();
      copy(std::false_type(), kYes);
    }
    __syncwarp();
    if (s.cluster > 1) cluster_wait();
  } else {
    claim_registers<kMultiplyRegisters>();
    wait_for_last_kernel();
    if (s.cluster > 1) cluster_wait();
    const int thread = threadIdx.x % 128;
    const Thread me = {0, warp / 4, lane, lane % 4, warp * 16};
    const uint32_t channels = shared + L::kChannels + me.group * L::kChannelsOfGroup * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kTokensOfGroup * int(sizeof(float));
    Ring<kStages> ring(kHigh ? 0 : me.group);
    int next = kHigh ? 0 : me.group;  // of this warpgroup's stages, counted from the first of a work tile on
    Sum sums[kColumns / 2];

    const auto wait = [&] { barrier_wait(full + 8 * ring.full(), ring.full_parity()); };
    const auto free = [&](int slot) {  // after wgmma_wait, for which a warp meets
      if (arrives(lane)) barrier_arrive(empty + 8 * slot);
    };
    // Of the present stage: this warpgroup's rows of the left operand, and the right one's from a column on.
    const auto left = [&] {
      const int first = (L::kTurned ? L::kWBytes : 0) + (kHigh ? me.group * 64 * kLine : 0);
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + first));
    };
    const auto right = [&](int column) {
      const int first = (L::kTurned ? 0 : L::kWBytes) + column * kLine;
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + first));
    };

    for_each_work<false>(s, block_work, [&](const WorkTile& work) {
      Tile tile = tile_of(a.tiles, work.tile, kTokens, a.rows);
      tile.end = tile.row + a.rows;
      if constexpr (!kHigh) tile.group_rows = 0, tile.group_tokens = kTokens / 2;
      if constexpr (L::kTurned) tile.group_rows = 0;
      Scales<L> scales;
      scales.load(a.p, tile, me.group, thread);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0;
      if constexpr (kType == Element::int8) {
        int previous = -1;  // slot
#pragma unroll 1
        for (; next < work.k_tiles; next += kTurns) {
          wait();
          multiply<kType, 0, kSteps>(sums, left(), right(0), true);
          wgmma_wait<1>();
          if (previous >= 0) free(previous);
          previous = ring.slot();
          ring.advance(kTurns);
        }
        wgmma_wait<0>();
        settle(sums);
        if (previous >= 0) free(previous);
      } else {
        constexpr int kAtOnce = std::is_same_v<Output, __nv_bfloat16> ? kSteps : kSteps / 2;  // left to the engine's sums
        constexpr int kPieces = kColumns <= 192 ? 1 : 2;  // of a stage's columns, that registers are for
        constexpr int kPart = kColumns / 2 / kPieces;
        if (next < work.k_tiles) wait();
#pragma unroll 1
        for (; next < work.k_tiles; next += kTurns) {
          const bool more = next + kTurns < work.k_tiles;
          const int slot = ring.slot();
          bool here = true;  // the next stage: asked for while the last products run
          Sum part[kPart];
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            const auto take = [&](bool last) {
              if (last) ring.advance(kTurns);
              if (last && more) here = barrier_test(full + 8 * ring.full(), ring.full_parity());
              wgmma_wait<0>();
              if (last) free(slot);
              settle(part);
              add(sums + piece * kPart, part);
            };
            multiply<kType, 0, kAtOnce>(part, left(), right(piece * 2 * kPart), false);
            take(piece + 1 == kPieces && kAtOnce == kSteps);
            if constexpr (kAtOnce < kSteps) {
              multiply<kType, kAtOnce, kSteps>(part, left(), right(piece * 2 * kPart), false);
              take(piece + 1 == kPieces);
            }
          }
          if (!here) wait();
        }
      }
      next -= work.k_tiles;
      scales.store(channels, row_scales, thread);
      sync_threads_of(kGroupBarrier + me.group, 128);

      const RowwiseEpilogue<Sum, Output> epilogue = {static_cast<Output*>(a.p.y),
                                                     int(a.p.M),
                                                     int(a.p.N),
                                                     a.p.output == Element::int32,
                                                     tile,
                                                     tile.group_rows > 0 ? shared + L::kChannels : channels,
                                                     row_scales - (L::kTurned ? me.group * 64 * int(sizeof(float)) : 0)};
      const auto finish = [&](auto& mine) {
        unsigned chunks = ~0u;  // that are complete
        if (work.k_tiles < s.k_tiles) chunks = meet_cluster<2, Output, kMine>(mine, kPair, shared + L::kClusterBarriers, shared);
        write_tile<kMine>(mine, me, epilogue, tile, shared + L::kStaging, chunks);
      };
      if constexpr (L::kTurned) {
        write_turned_tile<kColumns>(sums, me, epilogue, tile);
      } else if constexpr (kHigh) {
        finish(sums);
      } else {
        Sum mine[kMine / 2];
        share_out<typename L::Shared>(sums, mine, me.group, shared + L::kStaging);
        finish(mine);
      }
    });
  }
}

}  // namespace aoext::cuda::wgmma
