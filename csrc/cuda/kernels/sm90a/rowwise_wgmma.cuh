// 8-bit products on Hopper: y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], x and w both int8, e4m3 or e5m2.
//
// Operands. wgmma reads both from shared memory, where bulk tensor copies left them. Most tiles use swap_ab: w is the left
// operand, a warpgroup multiplies 64 output channels by up to 256 rows of x, y comes transposed, and few rows of x still fill the
// instruction. In the others (kXIsLeft) 128 rows of x are the left operand, and the output channels are the instruction's
// columns, of which it takes any multiple of 8: such tiles come out even over the blocks, and cost only what they hold.
//
// Memory. A tile has BLOCK_N = 128 or 64 output channels by BLOCK_M rows of x; a k-tile is 128 k, a line of 128 bytes a row. So
// that tiles come out even over the blocks they may have fewer output channels than BLOCK_N: the instruction multiplies all the
// same, and results beyond the tile's are dropped. Two consumer warpgroups multiply. Of BLOCK_N = 128 each has 64 output
// channels; of 64 they take the k-tiles in turns, and each finishes half the rows of x. One thread of a third warpgroup is the
// producer, or two where k-tiles are small, one for w and one for x, since issuing a copy takes 0.1 µs. For tiles of 128 by 256 a
// k-tile is 48 KiB against 1024 cycles of the tensor cores; with few rows of x 128 KiB of w or more are in flight to a
// multiprocessor. Tiles that do not fill a last turn are shared along K (tile_scheduler.h).
//
// Accumulation. int8: int32, exact. float8: the tensor cores keep 14 bits of a sum and cut off the rest, so after every 128 k, or
// 64 where results are fp16, the sum is added to a float32 in other registers. With random positive numbers a row is off by 2e-4
// after 64 k, 7e-4 after 128, 2e-3 after 256, 6e-3 after 512, however long K is. While one warpgroup adds, the other multiplies.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <type_traits>

#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kSteps = kLine / 32;  // an instruction takes 32 k
constexpr int kEarly = 4;           // k-tiles of w that are prefetched into L2 while the last kernel ends

template <class Scheduler>
struct RowwiseParams {
  RowwiseLinear p;
  Tiles tiles;
  Scheduler schedule;  // what lies outside K in the last k-tile is zero
  int tile_n;          // output channels of a tile: BLOCK_N or fewer
  int copy_rows;       // rows of x in one copy
  uint64_t w_policy;   // cache hint for L2
};

// The product whose tile it is.
__device__ inline const RowwiseLinear& product_of(const RowwiseLinear& p, const WorkTile&) { return p; }
// Behind the last expert sums are zero, and so is what becomes of them.
__device__ inline RowwiseLinear product_of(const RowwiseLinear& p, const GroupedTile& work) {
  const bool is_expert = work.expert < p.experts;
  RowwiseLinear own = of_expert(p, is_expert ? work.expert : 0);
  if (!is_expert) own.row_scale = nullptr, own.scale = own.bias = nullptr;
  own.M = work.end;
  return own;
}

// ---- Shared memory ----

// Without swap_ab: tiles whose output channels are not those of one warpgroup or of two.
constexpr bool is_x_left(int block_n) { return block_n != kPairN && block_n != kPairN / 2; }

template <class Output, int kBlockN, int kBlockM, int kStages>
struct RowwiseLayout {
  static constexpr bool kXIsLeft = is_x_left(kBlockN);
  static constexpr bool kSplitsM = kXIsLeft;                    // each warpgroup has the row scales of its own rows of x alone
  static constexpr int kTurns = kBlockN == kPairN / 2 ? 2 : 1;  // in which the warpgroups take k-tiles
  static_assert(kStages % kTurns == 0);
  static_assert(kXIsLeft ? kBlockM == kPairN : kBlockN == kPairN || kBlockN == kPairN / 2);
  static constexpr int kGroupN = kXIsLeft ? kBlockN : 64,
                       kGroupM = kXIsLeft ? 64 : kBlockM;                  // of a warpgroup
  static constexpr int kOwnM = kXIsLeft ? 0 : kBlockM * kBlockN / kPairN;  // rows of x that a warpgroup stores
  static constexpr int kWBytes = kBlockN * kLine, kXBytes = kBlockM * kLine;
  static constexpr int kStage = kWBytes + kXBytes;  // w, then x
  static constexpr int kStaging = kStages * kStage;
  using S = Staging<Output, kOwnM>;
  using Shared = Sharing<kBlockM, 4>;
  static constexpr int kStagingBytes = std::max(2 * S::kBuffers * S::kBufferBytes, kTurns == 2 ? Shared::kBytes : 0);
  static constexpr int kChannels = kStaging + kStagingBytes;  // of each warpgroup its own, as are row scales
  static constexpr int kRowScales = kChannels + 2 * kGroupN * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kGroupM * int(sizeof(float));
  static constexpr int kClusterBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kBytes = kClusterBarriers + kClusterBarrierBytes + 1024;  // the alignment of bulk tensor copies
  // What the blocks of a cluster receive overlays the stages; tiles without swap_ab are not shared.
  using Shares = ClusterShares<Output, (kXIsLeft ? 32 : kOwnM), 2>;
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
  bool as_is;  // y is the sum itself
  Tile tile;
  uint32_t channels, row_scales;  // in shared memory, this warpgroup's of the tile

  __device__ Channel channel(int n) const {
    const float2 c = load_shared_pair(channels + (n - tile.n) * int(sizeof(Channel)));
    return {c.x, c.y};
  }
  __device__ float row(int m) const { return load_shared(row_scales + (m - tile.m) * int(sizeof(float))); }
  __device__ float operator()(Sum sum, float row_scale, const Channel& c) const {
    if constexpr (std::is_same_v<Sum, int> && std::is_same_v<Output, float>)
      if (as_is) return bits<float>(sum);
    return scaled(sum, row_scale, c);
  }
};

// Scales and bias that a thread loads before the tile is multiplied, and stores to shared memory after it.
template <class L>
struct Scales {
  static constexpr int kChannels = (L::kGroupN + 127) / 128, kRowScales = (L::kGroupM + 127) / 128;
  Channel channels[kChannels];
  float row_scales[kRowScales];

  __device__ void load(const RowwiseLinear& p, const Tile& tile, int group, int thread) {
    const int first_n = tile.n + group * tile.group_n, first_m = tile.m + (L::kSplitsM ? group * 64 : 0);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int n = thread + i * 128;
      channels[i] = n < L::kGroupN && first_n + n < p.N ? load_channel(p, first_n + n) : Channel{};
    }
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int m = thread + i * 128;
      row_scales[i] = m < L::kGroupM && first_m + m < p.M ? load_row_scale(p, first_m + m) : 0;
    }
  }

  __device__ void store(uint32_t my_channels, uint32_t my_row_scales, int thread) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int n = thread + i * 128;
      if (n < L::kGroupN) store_shared(my_channels + n * int(sizeof(Channel)), channels[i].scale, channels[i].bias);
    }
#pragma unroll
    for (int i = 0; i < kRowScales; ++i) {
      const int m = thread + i * 128;
      if (m < L::kGroupM) store_shared(my_row_scales + m * int(sizeof(float)), row_scales[i]);
    }
  }
};

// Stores a warpgroup's 64 rows of x by kColumns output channels. A thread has pairs of outputs of a row of y, a quad eight of a
// row: the lanes of a quad exchange 16-bit outputs of four octets of columns, so that each lane stores 16 bytes, the quad 64.
template <int kColumns, class Epilogue, class Sum>
__device__ inline void write_x_left_tile(const Sum (&sums)[kColumns / 2], const Thread& me, const Epilogue& epilogue,
                                         const Tile& tile) {
  using Output = typename Epilogue::Output;
  constexpr int kOctets = kColumns / 8, kAtOnce = 4;
  const int upper = tile.m + me.row(), end = min(epilogue.N, tile.end_n);
  const decltype(epilogue.row(upper)) row_values[2] = {epilogue.row(upper), epilogue.row(upper + 8)};
  const auto store = [&](int half, int n, const auto& outputs) {
    const int m = upper + 8 * half;
    if (m < epilogue.M && n < end)
      store_outputs</*kWholeVectors=*/false>(epilogue.y + int64_t(m) * epilogue.N, n, epilogue.N, outputs);
  };
#pragma unroll
  for (int first = 0; first < kOctets; first += kAtOnce) {
    uint32_t pieces[2][kAtOnce] = {};
#pragma unroll
    for (int octet = first; octet < min(first + kAtOnce, kOctets); ++octet) {
      const int n = tile.n + 8 * octet + 2 * me.quad;
      const auto left = epilogue.channel(n), right = epilogue.channel(n + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * octet + 2 * half;
        const float a = epilogue(sums[i], row_values[half], left), b = epilogue(sums[i + 1], row_values[half], right);
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
        if (octet < kOctets) store(half, tile.n + 8 * octet, uint4{v[0], v[1], v[2], v[3]});
      }
    }
  }
  sync_threads_of(kGroupBarrier + me.group, 128);  // scales and bias may be written again
}

// Finishes a tile with swap_ab: adds the sums of warpgroups that took k-tiles in turns, and of the blocks of a cluster where
// these share the tile, and stores y.
template <class L, class Epilogue, class Sum, int kSums>
__device__ inline void finish_tile(Sum (&sums)[kSums], const Thread& me, const Epilogue& epilogue, const Tile& tile,
                                   bool is_shared, uint32_t shared) {
  const auto finish = [&](auto& mine) {
    unsigned chunks = ~0u;  // of rows of x, that this block has the sums of
    if (is_shared)
      chunks =
          reduce_cluster</*kCluster=*/2, typename Epilogue::Output, L::kOwnM>(mine, kPair, shared + L::kClusterBarriers, shared);
    const LateRows<Epilogue> rows = {&epilogue, tile.m + me.group * tile.group_m};
    write_tile<L::kOwnM>(mine, me, epilogue, rows, tile, shared + L::kStaging, chunks);
  };
  if constexpr (L::kTurns == 1) {
    finish(sums);
  } else {
    Sum mine[L::kOwnM / 2];
    share_out<typename L::Shared>(sums, mine, me.group, shared + L::kStaging);
    finish(mine);
  }
}

// ---- Products ----

// Issues d (+)= the product of a k-tile, or of some of its steps of 32 k.
template <Element kType, int kFirst, int kEnd, class Sum, int kSums>
__device__ inline void multiply(Sum (&d)[kSums], uint64_t left, uint64_t right, bool add) {
  wgmma_fence();
#pragma unroll
  for (int step = kFirst; step < kEnd; ++step)
    Wgmma<2 * kSums>::multiply(std::integral_constant<Element, kType>(), d, left + 2 * step, right + 2 * step,
                               add || step > kFirst);
  wgmma_commit();
}

// Keeps the compiler from moving reads of the sums before the wait for the product that writes them.
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

constexpr int kRowwiseThreads = kPair + 128;                  // setmaxnreg moves registers between whole warpgroups
constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;  // of a thread

// Initialises the barriers of a block, and finds what it works through. By its first thread or, of experts, by the last warp, a
// producer that has nothing else to do yet.
template <class L, int kStages, int kBlockM, class Scheduler>
__device__ inline void init_block(const Scheduler& s, WorkOf<Scheduler>& block_work, uint32_t shared, int full_arrivals) {
  if constexpr (kGrouped<Scheduler>) {
    if (warp_index() == kRowwiseThreads / 32 - 1) {
      wait_for_last_kernel();
      block_work.find(s, kBlockM);
    }
  }
  if (threadIdx.x > 0) return;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  for (int i = 0; i < kStages; ++i) {
    barrier_init(full + 8 * i, full_arrivals);
    barrier_init(empty + 8 * i, kPairWarps / L::kTurns * kArrivals);
  }
  if (s.cluster > 1) init_cluster_barriers(shared + L::kClusterBarriers, s.cluster);
  barrier_init_fence();
  if constexpr (!kGrouped<Scheduler>) block_work.find(s);
}

// A k-tile of w's rows from `row` on.
template <class Scheduler>
__device__ inline void copy_w(uint32_t to, const CUtensorMap* map, uint32_t arrived, int k, int row, int expert,
                              uint64_t policy) {
  if constexpr (kGrouped<Scheduler>)
    copy_matrix_tile(to, map, arrived, k, row, expert);
  else
    copy_tile(to, map, arrived, k, row, policy);
}

// The producer: copies k-tiles of w (kW), of x (kX), or of both into the stages. By one thread.
template <class L, int kBlockN, int kBlockM, int kStages, bool kW, bool kX, class Scheduler>
__device__ inline void copy_stages(const RowwiseParams<Scheduler>& a, const WorkOf<Scheduler>& block_work, uint32_t shared,
                                   uint32_t full, uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(a.schedule, block_work, [&](const auto& work) {
    const Tile tile = tile_of(a.tiles, work, kBlockM, a.tile_n);
    const int rows = copied_rows(rows_end(work, a.p.M), tile, kBlockM, a.copy_rows);
    const int end = (work.first_k_tile + work.k_tiles) * kLine;
#pragma unroll 1
    for (int k = work.first_k_tile * kLine; k < end; k += kLine) {
      const uint32_t arrived = full + 8 * ring.full(), to = shared + ring.slot() * L::kStage;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if (kW) {
        barrier_expect(arrived, (a.tile_n + rows) * kLine);
        copy_w<Scheduler>(to, &w_map, arrived, k, tile.n, weight_of(work), a.w_policy);
      }
#pragma unroll 1
      for (int row = 0; kX && row < rows; row += a.copy_rows)
        copy_tile(to + L::kWBytes + row * kLine, &x_map, arrived, k, tile.m + row);
      ring.advance();
    }
  });
}

template <Element kType, class Output, int kBlockN, int kBlockM, int kStages, class Scheduler>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    rowwise_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ RowwiseParams<Scheduler> a) {
  using L = RowwiseLayout<Output, kBlockN, kBlockM, kStages>;
  constexpr bool kHigh = L::kTurns == 1;  // each warpgroup has output channels of its own; else they take turns with k-tiles
  constexpr int kColumns = L::kXIsLeft ? kBlockN : kBlockM;
  constexpr int kTurns = L::kTurns;
  using Sum = WgmmaSum<kType>;
  const Scheduler& s = a.schedule;
  extern __shared__ char unaligned[];
  __shared__ WorkOf<Scheduler> block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  init_block<L, kStages, kBlockM>(s, block_work, shared, /*full_arrivals=*/1);
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_stages<L, kBlockN, kBlockM, kStages, of_w, of_x>(a, block_work, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      if constexpr (!kGrouped<Scheduler>) {
        const WorkTile first = first_work(s, block_work);
        const int row = tile_of(a.tiles, first.tile, kBlockM, a.tile_n).n;
        for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * kLine, row);
      }
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
    const uint32_t channels = shared + L::kChannels + me.group * L::kGroupN * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kGroupM * int(sizeof(float));
    Ring<kStages> ring(kHigh ? 0 : me.group);
    int next = kHigh ? 0 : me.group;  // k-tile of this warpgroup, counted from the first of its work tile
    Sum sums[kColumns / 2];

    const auto wait = [&] { barrier_wait(full + 8 * ring.full(), ring.full_parity()); };
    const auto free = [&](int slot) {  // after wgmma_wait, which synchronises a warp
      if (arrives(lane)) barrier_arrive(empty + 8 * slot);
    };
    // This warpgroup's rows of the left operand in the current stage, and the right operand from a column on.
    const auto left = [&] {
      const int first = (L::kXIsLeft ? L::kWBytes : 0) + (kHigh ? me.group * 64 * kLine : 0);
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + first));
    };
    const auto right = [&](int column) {
      const int first = (L::kXIsLeft ? 0 : L::kWBytes) + column * kLine;
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + first));
    };

    for_each_work</*kStreamK=*/false>(s, block_work, [&](const auto& work) {
      Tile tile = tile_of(a.tiles, work, kBlockM, a.tile_n);
      tile.end_n = tile.n + a.tile_n;
      if constexpr (!kHigh) tile.group_n = 0, tile.group_m = kBlockM / 2;
      if constexpr (L::kXIsLeft) tile.group_n = 0;
      Scales<L> scales;
      scales.load(product_of(a.p, work), tile, me.group, thread);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0;
      if constexpr (kType == Element::int8) {
        int previous = -1;  // stage that the tensor cores may still read
#pragma unroll 1
        for (; next < work.k_tiles; next += kTurns) {
          wait();
          multiply<kType, /*kFirst=*/0, /*kEnd=*/kSteps>(sums, left(), right(0), true);
          wgmma_wait<1>();
          if (previous >= 0) free(previous);
          previous = ring.slot();
          ring.advance(kTurns);
        }
        wgmma_wait<0>();
        settle(sums);
        if (previous >= 0) free(previous);
      } else {
        constexpr int kAtOnce =
            std::is_same_v<Output, __nv_bfloat16> ? kSteps : kSteps / 2;  // that the tensor cores add up by themselves
        constexpr int kPieces = kColumns <= 192 ? 1 : 2;  // of the columns, whose product has registers beside the sums
        constexpr int kPart = kColumns / 2 / kPieces;
        if (next < work.k_tiles) wait();
#pragma unroll 1
        for (; next < work.k_tiles; next += kTurns) {
          const bool more = next + kTurns < work.k_tiles;
          const int slot = ring.slot();
          bool here = true;  // whether the next k-tile is: tested while the last products run
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
            multiply<kType, /*kFirst=*/0, /*kEnd=*/kAtOnce>(part, left(), right(piece * 2 * kPart), false);
            take(piece + 1 == kPieces && kAtOnce == kSteps);
            if constexpr (kAtOnce < kSteps) {
              multiply<kType, /*kFirst=*/kAtOnce, /*kEnd=*/kSteps>(part, left(), right(piece * 2 * kPart), false);
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
                                                     rows_end(work, a.p.M),
                                                     int(a.p.N),
                                                     a.p.output == Element::int32,
                                                     tile,
                                                     tile.group_n > 0 ? shared + L::kChannels : channels,
                                                     row_scales - (L::kXIsLeft ? me.group * 64 * int(sizeof(float)) : 0)};
      if constexpr (L::kXIsLeft)
        write_x_left_tile<kColumns>(sums, me, epilogue, tile);
      else
        finish_tile<L>(sums, me, epilogue, tile, !kGrouped<Scheduler> && work.k_tiles < s.k_tiles, shared);
    });
  }
}

}  // namespace aoext::cuda::wgmma
