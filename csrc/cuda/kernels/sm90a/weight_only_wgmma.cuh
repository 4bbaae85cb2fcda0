// Weight-only products for many rows on Hopper: y[M, N] = x[M, K] · w[N, K]ᵀ, x in bf16 or fp16, weights narrower.
//
// Operands. swap_ab, with w in registers: a consumer warpgroup unpacks 64 output channels by 64 k, rounds them once to x's type,
// and multiplies by up to 256 rows of x, which lie in shared memory as bulk tensor copies left them. y comes transposed, and
// tiles with few rows of x still fill the 64 rows of wgmma.
//
// Memory. A tile has BLOCK_N = 192, 128 or 64 output channels by BLOCK_M rows of x. A warpgroup multiplies 64 output channels
// (two warpgroups where tiles are narrow or BLOCK_N is 64, see below); two producer threads copy, one w and one x. A stage of w
// has a line of 128 bytes an output channel, one of x 64 k. For 128 by 256, 64 k are 4 KiB of int4 or 8 of 8-bit weights, and 32
// of x, against 1024 cycles of the tensor cores; L2 keeps up with that (multicasting x to two blocks of a cluster gained
// nothing). Tiles that do not fill a last turn are shared along K (tile_scheduler.h).
//
// Latency. wgmma reads its left operand from registers while it runs, so a warpgroup has two sets of fragments: it unpacks into
// one while the tensor cores multiply the other, 50 instructions a thread for 32 k, and never waits for the product it has just
// issued. That is latency more than work, so for narrow tiles, whose sums leave registers for it, two pairs of warpgroups split K
// (kWarpgroupSplits) and add their sums at the end. A wgmma with its left operand in registers holds up its warp until the one
// before has begun, so a chunk's bytes are loaded before the product of the chunk before it is issued, and the barrier of the
// next x is tested before the unpacking, not after. Three warpgroups (BLOCK_N = 192) hide more from each other than two.
//
// Instructions. Beside products of 128 columns a quarter of the multiprocessor issues every other cycle, so each instruction
// counts. The loop is over as many stages of w as both rings have whole rounds of, two if possible: then addresses in shared
// memory are constants. Tiles with two splits are slower so, and have one.
//
// Few tiles. Unpacking a weight costs the same for few rows of x as for many, so a tile should have all rows; but then there are
// too few tiles of 128 output channels for all multiprocessors, and clusters of more than two blocks do not all run at once. With
// BLOCK_N = 64 there are twice as many, and the two warpgroups split K: 4096 by 4096 by 128 rows of x becomes 64 tiles by
// clusters of two, with half the unpacking of tiles of 128 by 64.
//
// What differs between weight formats is a policy's:
//
//   struct Weights {                           // what a kernel's arguments hold of it
//     static constexpr int kBlockN;            // output channels of a tile: 192, 128 or 64
//     static constexpr int kLinesBytes;        // of a stage's lines
//     static constexpr int kStage;             // k of a stage: a line of 128 bytes an output channel
//     static constexpr int kExtraBytes;        // of a stage beside its lines: scales
//     static constexpr int kNarrowStages, kWideStages;  // stages of narrow tiles and of wide ones
//     static constexpr int kMostCluster;       // 2 or 3
//     struct Maps { void prefetch() const; ... };
//     class Copies {                           // of the producer thread
//       Copies(const Weights&, const Maps&);
//       uint32_t bytes() const;                // of a stage
//       void start(int n, int k_tile);         // and `int expert` of a grouped product
//       void prefetch();                       // a k-tile into L2 only; like copy, it goes on to the next one
//       void copy(uint32_t lines, uint32_t extra, uint32_t arrived);
//     };
//     template <int kWarpgroupSplits> class Reader {      // of a consumer thread
//       Reader(const Weights&, uint32_t lines, uint32_t extra, const Thread&);  // where the stages begin
//       void load(const Ring&, int c);         // the bytes of the thread's chunk c, 32 k, of the ring's current stage
//       void unpack(uint32_t (&fragments)[2][4]) const;
//     };
//   };
//
// A grouped product is the same kernel by another Scheduler. Its weights have an expert as the third coordinate of their tensor
// maps (MatrixCopies), and its epilogue has of_expert().
//
// An epilogue has, instead of row(m):
//
//   template <int kRows, bool kEarly> struct Rows {       // what outputs of a row of x share, of kRows rows
//     void load(const Epilogue&, int first_m, int lane);  // before the last product ends, if registers hold them: kEarly
//     auto operator()(int first, int in) const;           // as write_tile wants it, by all lanes of a warp
//   };
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include "cuda/kernels/sm90a/tiles.cuh"
#include "cuda/kernels/sm90a/wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kStep = 64;  // k of a stage of x: a line

template <class Weights, class Epilogue, class Scheduler>
struct Params {
  Weights weights;
  Epilogue epilogue;
  Tiles tiles;
  Scheduler schedule;  // what lies outside K in the last k-tile is zero
  int copy_rows;       // rows of x in one copy
};

// ---- Shared memory ----

template <class Weights, class Output, int kBlockM, int kXStages, int kWStages, int kWarpgroupSplits>
struct Layout {
  static constexpr int kXBytes = kBlockM * kStep * 2;
  static constexpr int kX = 0;
  static constexpr int kLines = kX + kXStages * kXBytes;
  static constexpr int kExtra = kLines + kWStages * Weights::kLinesBytes;
  static constexpr int kOut = kExtra + kWStages * Weights::kExtraBytes;
  // Two splits of one warpgroup each reduce by share_out, with all memory from kOut to kBarriers; others by
  // reduce_warpgroup_splits.
  static constexpr bool kShares = kWarpgroupSplits == 2 && Weights::kBlockN == 64;
  static constexpr int kThreads = kShares ? kPair : 2 * Weights::kBlockN;  // that have sums after that
  static constexpr int kOwnM = kShares ? kBlockM / 2 : kBlockM;            // rows of x
  static constexpr int kHanding = kOut + Staging<Output, kOwnM, Weights::kBlockN / 64>::kBytes;
  using Shared = Sharing<kBlockM, 8>;
  static constexpr int kBarriers = kShares ? std::max(kHanding, kOut + Shared::kBytes)
                                           : kHanding + Handing<kWarpgroupSplits, Weights::kBlockN, kBlockM>::kBytes;
  using XCopies = Ring<kXStages, kWarpgroupSplits>;
  // The consumers' rings, whose loop is over kRound stages of w.
  static constexpr int kSteps = Weights::kStage / kStep;  // of x in one of them
  static constexpr int kRound = kWarpgroupSplits == 1 && kWStages % 2 == 0 && kXStages % (2 * kSteps) == 0 ? 2 : 1;
  using XRing = std::conditional_t<kXStages % kSteps == 0, RingOfRounds<kXStages, kWarpgroupSplits, kRound * kSteps>, XCopies>;
  using WRing = std::conditional_t<kRound == 2, RingOfRounds<kWStages, 1, kRound>, Ring<kWStages>>;
  static constexpr int kClusterBarriers = kBarriers + 8 * (XRing::kFullBarriers + kXStages + 2 * kWStages);
  static constexpr int kPartialBarriers = kClusterBarriers + kClusterBarrierBytes;
  static constexpr int kBytes = kPartialBarriers + kPartialBarrierBytes + 1024;  // the alignment of bulk tensor copies
  // What the blocks of a cluster receive overlays the stages.
  static_assert(kXStages == 0 || ClusterShares<Output, kOwnM, 2>::bytes(kThreads) <= kOut);
  static_assert(kXStages == 0 || ClusterShares<Output, kOwnM, Weights::kMostCluster>::bytes(kThreads) <= kOut);
};

// ---- Copying weights ----

// Bulk tensor copies from a matrix, or from an expert's of many.
template <bool kOfExpert>
class MatrixCopies {
 public:
  __device__ void start(int expert) {
    if constexpr (kOfExpert) expert_ = expert;
  }
  __device__ void copy(uint32_t to, const CUtensorMap* map, uint32_t arrived, int x, int y) const {
    if constexpr (kOfExpert)
      copy_matrix_tile(to, map, arrived, x, y, expert_);
    else
      copy_tile(to, map, arrived, x, y);
  }

 private:
  int expert_ = 0;
};

// ---- Reading weights ----

// A value that the compiler cannot recompute, so that it stays in a register: reading the thread's number is slow.
__device__ inline uint32_t kept(uint32_t v) { return __shfl_sync(~0u, v, threadIdx.x); }

// A split takes every kWarpgroupSplits-th pair of chunks: its chunk c of a stage is chunk own_chunk(c) + 2 · split.
template <int kWarpgroupSplits>
__device__ constexpr int own_chunk(int c) {
  return c / 2 * 2 * kWarpgroupSplits + c % 2;
}

// Where a thread's output channel begins in a stage of lines whose chunks have `bytes`. Bulk tensor copies swizzle: 16 bytes c of
// row r lie at place c ^ r % 8.
__device__ inline uint32_t row_address(uint32_t lines, const Thread& me, int bytes) {
  return lines + me.row() * kLine + (((me.lane / 4) << 4) ^ (2 * me.split * bytes));
}

// ---- The producers: one thread for w, one for x. The time that a copy takes them limits narrow tiles, so what can be done once
// a tile stays out of the inner loops. ----

template <class L, int kBlockM, int kWStages, class Weights, class Epilogue, class Scheduler>
__device__ inline void copy_weights(const Params<Weights, Epilogue, Scheduler>& p, const WorkOf<Scheduler>& block_work,
                                    uint32_t shared, uint32_t full, uint32_t empty, const typename Weights::Maps& maps) {
  typename Weights::Copies copies(p.weights, maps);
  maps.prefetch();
  if constexpr (!kGrouped<Scheduler>) {
    // The first k-tiles into L2 while the last kernel ends. (Which they are of experts it may just be writing.)
    const WorkTile first = first_work(p.schedule, block_work);
    copies.start(tile_of(p.tiles, first.tile, kBlockM, Weights::kBlockN).n, first.first_k_tile);
    for (int stage = 0; stage < min(first.k_tiles, kWStages); ++stage) copies.prefetch();
  }
  wait_for_last_kernel();
  Ring<kWStages> w;
  for_each_work(p.schedule, block_work, [&](const auto& work) {
    const int n = tile_of(p.tiles, work, kBlockM, Weights::kBlockN).n;
    if constexpr (kGrouped<Scheduler>)
      copies.start(n, work.first_k_tile, work.expert);
    else
      copies.start(n, work.first_k_tile);
#pragma unroll 1
    for (int stage = 0; stage < work.k_tiles; ++stage) {
      const uint32_t arrived = full + 8 * w.full();
      barrier_wait(empty + 8 * w.slot(), w.empty_parity() ^ 1);
      barrier_expect(arrived, copies.bytes());
      copies.copy(shared + L::kLines + w.slot() * Weights::kLinesBytes, shared + L::kExtra + w.slot() * Weights::kExtraBytes,
                  arrived);
      w.advance();
    }
  });
}

template <class L, int kBlockM, class Weights, class Epilogue, class Scheduler>
__device__ inline void copy_input(const Params<Weights, Epilogue, Scheduler>& p, const WorkOf<Scheduler>& block_work,
                                  uint32_t shared, uint32_t full, uint32_t empty, const CUtensorMap& x_map) {
  constexpr int kStage = Weights::kStage;
  prefetch_map(&x_map);
  wait_for_last_kernel();
  start_next_kernel();
  typename L::XCopies x;
  for_each_work(p.schedule, block_work, [&](const auto& work) {
    const Tile tile = tile_of(p.tiles, work, kBlockM, Weights::kBlockN);
    int end_m = p.epilogue.M;
    if constexpr (kGrouped<Scheduler>) end_m = work.end;
    const int rows = copied_rows(end_m, tile, kBlockM, p.copy_rows);
    const int end = (work.first_k_tile + work.k_tiles) * kStage;
#pragma unroll 1
    for (int k = work.first_k_tile * kStage; k < end; k += kStep) {
      const uint32_t arrived = full + 8 * x.full(), to = shared + L::kX + x.slot() * L::kXBytes;
      barrier_wait(empty + 8 * x.slot(), x.empty_parity() ^ 1);
      barrier_expect(arrived, rows * kLine);
#pragma unroll 1
      for (int row = 0; row < rows; row += p.copy_rows) copy_tile(to + row * kLine, &x_map, arrived, k, tile.m + row);
      x.advance();
    }
  });
}

// ---- The kernel ----

// Registers of a producer and of a consumer thread, of the 65,536 of a multiprocessor, by the number of consumers.
template <int kMultiplying>
struct Registers;

template <>
struct Registers<256> {
  static constexpr int kCopy = 40, kMultiply = 232;
};

template <>
struct Registers<384> {
  static constexpr int kCopy = 24, kMultiply = 160;
};

template <>
struct Registers<512> {
  static constexpr int kCopy = 32, kMultiply = 112;
};

// Consumer threads: a warpgroup for 64 output channels of each split.
__host__ __device__ constexpr int multiplying(int splits, int rows) { return splits * 2 * rows; }
// And the producers: setmaxnreg moves registers between whole warpgroups.
__host__ __device__ constexpr int threads(int splits, int rows) { return multiplying(splits, rows) + 128; }

template <class T, class Weights, class Epilogue, class Scheduler, int kBlockM, int kXStages, int kWStages, int kWarpgroupSplits>
__global__ void __launch_bounds__(threads(kWarpgroupSplits, Weights::kBlockN), 1)
    weight_only(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ typename Weights::Maps maps,
                const Params<Weights, Epilogue, Scheduler> p) {
  using Output = typename Epilogue::Output;
  using L = Layout<Weights, Output, kBlockM, kXStages, kWStages, kWarpgroupSplits>;
  using XRing = typename L::XRing;
  constexpr int kBlockN = Weights::kBlockN, kMath = multiplying(kWarpgroupSplits, kBlockN), kSplitWarps = kBlockN / 16;
  extern __shared__ char unaligned[];
  __shared__ WorkOf<Scheduler> block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t x_full = shared + L::kBarriers, x_empty = x_full + 8 * XRing::kFullBarriers;
  const uint32_t w_full = x_empty + 8 * kXStages, w_empty = w_full + 8 * kWStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < XRing::kFullBarriers; ++i) barrier_init(x_full + 8 * i, 1);
    for (int i = 0; i < kXStages; ++i) barrier_init(x_empty + 8 * i, kSplitWarps * kArrivals);
    for (int i = 0; i < kWStages; ++i) {
      barrier_init(w_full + 8 * i, 1);
      barrier_init(w_empty + 8 * i, kMath / 32 * kArrivals);
    }
    if (p.schedule.cluster > 1) init_cluster_barriers(shared + L::kClusterBarriers, p.schedule.cluster);
    init_partial_barriers(shared + L::kPartialBarriers, L::kThreads / 32);
    barrier_init_fence();
    if constexpr (!kGrouped<Scheduler>) block_work.find(p.schedule);
  }
  if constexpr (kGrouped<Scheduler>) {
    if (warp == kMath / 32 + 3) {  // a producer warp that has nothing else to do
      wait_for_last_kernel();
      block_work.find(p.schedule, kBlockM);
    }
  }
  __syncthreads();
  if (p.schedule.cluster > 1) cluster_arrive_initialised();

  if (warp >= kMath / 32) {
    release_registers<Registers<kMath>::kCopy>();
    if (threadIdx.x == kMath) {
      copy_weights<L, kBlockM, kWStages>(p, block_work, shared, w_full, w_empty, maps);
    } else if (threadIdx.x == kMath + 32) {
      copy_input<L, kBlockM>(p, block_work, shared, x_full, x_empty, x_map);
    } else if (threadIdx.x == kMath + 64) {
      if constexpr (!kGrouped<Scheduler>) signal_partials(p.schedule, block_work, shared + L::kPartialBarriers);
    }
    __syncwarp();
    if (p.schedule.cluster > 1) cluster_wait();
  } else {
    claim_registers<Registers<kMath>::kMultiply>();
    const int split = kWarpgroupSplits == 1 ? 0 : warp / kSplitWarps, in_split = warp - split * kSplitWarps;
    const Thread me = {split, in_split / 4, lane, lane % 4, in_split * 16};
    typename Weights::template Reader<kWarpgroupSplits> weights(p.weights, shared + L::kLines, shared + L::kExtra, me);
    float sums[kBlockM / 2];
    constexpr int kOwn = Weights::kStage / 32 / kWarpgroupSplits;  // chunks of a split in a stage
    uint32_t fragments[2][2][4];
    XRing x(me.split);
    const uint32_t x_lines = kept(lines_descriptor(shared + L::kX));
    typename L::WRing w;
    if (p.schedule.cluster > 1) cluster_wait();

    const bool speaks = arrives(kept(lane));
    const auto free_weights = [&] {
      __syncwarp();
      if (speaks) barrier_arrive(w_empty + 8 * w.slot());
    };
    const auto free_x = [&](int slot) {  // after wgmma_wait, which synchronises a warp
      if (speaks) barrier_arrive(x_empty + 8 * slot);
    };
    const auto await_weights = [&] { barrier_wait(w_full + 8 * w.full(), w.full_parity()); };
    const auto await_x = [&] { barrier_wait(x_full + 8 * x.full(), x.full_parity()); };
    const auto x_is_here = [&] { return barrier_test(x_full + 8 * x.full(), x.full_parity()); };
    const auto multiply = [&](int c) {
      const uint32_t b = x_lines + x.slot() * (L::kXBytes >> 4) + c % 2 * 4;
      wgmma_fence();
      Wgmma<kBlockM>::multiply(T(), sums, fragments[c % 2][0], matrix_of_lines(b), true);
      Wgmma<kBlockM>::multiply(T(), sums, fragments[c % 2][1], matrix_of_lines(b + 2), true);
      wgmma_commit();
    };

    for_each_work(p.schedule, block_work, [&](const auto& work) {
      typename Epilogue::template Rows<L::kOwnM, kBlockN <= kPairN> rows;  // three warpgroups have no registers for them
      const auto load_rows = [&] {
        const Tile tile = tile_of(p.tiles, work, kBlockM, kBlockN);
        const int first_m = tile.m + (L::kShares ? me.split * L::kOwnM : 0);
        if constexpr (kGrouped<Scheduler>)
          rows.load(p.epilogue.of_expert(work.expert < p.schedule.experts, work.expert, work.end), first_m, lane);
        else
          rows.load(p.epilogue, first_m, lane);
      };
#pragma unroll
      for (int i = 0; i < kBlockM / 2; ++i) sums[i] = 0;
      if (work.k_tiles > 0) {
        await_weights();
        weights.load(w, 0);
        await_x();
        weights.unpack(fragments[0]);
        int previous = 0;  // stage of x that the tensor cores may still read
        int stage = 0;
        bool last;
        const auto multiply_stage = [&] {
          last = stage == work.k_tiles - 1;
#pragma unroll
          for (int c = 0; c < kOwn; ++c) {
            const bool more = c < kOwn - 1 || !last, next_x = more && c % 2 == 1;
            if (c == kOwn - 1) w.advance();
            if (more) {
              if (c == kOwn - 1) await_weights();
              weights.load(w, (c + 1) % kOwn);
            }
            multiply(c);
            const int used = x.slot();
            if (c % 2 == 1) x.advance(kWarpgroupSplits);
            const bool here = !next_x || x_is_here();
            wgmma_wait<1>();  // for all chunks but this one: the other fragments may be written
            if (c % 2 == 0 && (c > 0 || stage > 0)) free_x(previous);
            previous = used;
            if (more) weights.unpack(fragments[(c + 1) % 2]);
            if (!here) await_x();
            if (c == kOwn - 2) free_weights();
          }
          ++stage;
        };
#pragma unroll 1
        do {
          if constexpr (L::kRound == 2) {
            if (w.step() == 0) {  // else the last tile ended in the middle of a round
              w.assume(0), x.assume(0);
              multiply_stage();
              if (last) break;
            }
            w.assume(1), x.assume(L::kSteps);
          }
          multiply_stage();
        } while (!last);
        load_rows();
        wgmma_wait<0>();
        free_x(previous);
      } else {
        wait_for_last_kernel();  // no copy of x has
        load_rows();
      }

      Tile tile = tile_of(p.tiles, work, kBlockM, kBlockN);
      const auto finish = [&](auto& mine, const Thread& who) {
        if constexpr (kGrouped<Scheduler>) {
          const bool is_expert = work.expert < p.schedule.experts;
          write_tile<L::kOwnM>(mine, who, p.epilogue.of_expert(is_expert, work.expert, work.end), rows, tile, shared + L::kOut);
        } else {
          const StreamKPartials<float, L::kOwnM / 2, L::kThreads> partials(p.schedule, work.tile);
          if (is_of_range(p.schedule, work)) return partials.store(mine, block_work, shared + L::kPartialBarriers);
          const bool meets = p.schedule.cluster > 1 && work.k_tiles < p.schedule.k_tiles;
          const auto with_cluster = [&](auto cluster) {
            return reduce_cluster<cluster, Output, L::kOwnM>(mine, L::kThreads, shared + L::kClusterBarriers, shared);
          };
          unsigned chunks = ~0u;  // of rows of x, that this block has the sums of
          if (meets && Weights::kMostCluster > 2 && p.schedule.cluster > 2)
            chunks = with_cluster(std::integral_constant<int, Weights::kMostCluster>());
          else if (meets)
            chunks = with_cluster(std::integral_constant<int, 2>());
          else if (is_fix_up(p.schedule, work))
            partials.add(mine, kReductionBarrier);
          write_tile<L::kOwnM>(mine, who, p.epilogue, rows, tile, shared + L::kOut, chunks);
        }
      };
      if constexpr (L::kShares) {
        float mine[L::kOwnM / 2] = {};
        if (work.k_tiles > 0) share_out<typename L::Shared>(sums, mine, me.split, shared + L::kOut);
        Thread half = me;
        half.group = me.split, tile.group_n = 0, tile.group_m = L::kOwnM;
        finish(mine, half);
      } else {
        if constexpr (kWarpgroupSplits > 1)
          reduce_warpgroup_splits<kWarpgroupSplits, kBlockN, kBlockM>(sums, me, shared + L::kHanding);
        if (me.split == 0) finish(sums, me);
      }
    });
  }
}

}  // namespace aoext::cuda::wgmma
