// 8-bit products with a scale a block on Hopper (scaled.h): x of e4m3 or int8 by w of the same type.
//
// It walks memory as rowwise_wgmma.cuh does: swap_ab, a tile has 128 or 64 output channels by BLOCK_M rows of x, a k-tile 128 k,
// two warpgroups consume and one produces. The difference is what becomes of a k-tile's product: the tensor cores start from zero
// for each block of k, and the sums are multiplied by the scales of that block and added to float32 in other registers. Scales
// lie beside the operands in each stage: two warps of the producer warpgroup bring them by cp.async, which arrives on the stage's
// barrier. Their addresses are computed once a tile: with addresses and divisions in every k-tile these two warps were slower
// than all others.
//
// Where all output channels of a tile have one scale, as with blocks of 128 by 128, and BLOCK_M >= 128, x is the left operand (no
// swap_ab): a thread then has two factors a k-tile, and y does not come transposed. Scales of x are laid out chunk by chunk
// first, or two warps would read a line for each of them. For 128 output channels by 256 rows a k-tile is 1024 cycles of the
// tensor cores, and each of a thread's 128 sums takes one operation. With swap_ab a thread has sums of many rows of x, whose
// scales it reads while the tensor cores work, and needs two operations a sum: for 128 by 128, 256 cycles of all float units
// against 512 of the tensor cores. Blocks of 32 k take four times as many. While one warpgroup adds, the other multiplies.
#pragma once

#include "cuda/kernels/scaled.cuh"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"

namespace aoext::cuda::wgmma {

// How w is scaled: 8 bits with a scale for 64 output channels or more by 128 k or more; 8 bits with scales for each output
// channel; int4 (scaled_int4_wgmma.cuh).
enum class ScaledBy { tile, row, group };

template <class Scheduler>
struct ScaledParams {
  RowwiseParams<Scheduler> rowwise;
  const void* scale;  // as in ScaledLinear
  // Scales of x, [M, x_groups]. Where x is the left operand, by chunks, [x_chunks, x_groups], so that rows are neighbours.
  const float* x_values;
  int64_t scale_n, expert_scales;  // of a row of blocks of w, and of an expert
  int block_n, x_groups, w_groups;
  int x_chunks, w_chunks;  // chunks of k that share a value; x's by chunks as above
  int x_chunk;             // k-tiles that share one of these
  Element scale_type;
};

// Whether x is the left operand. A thread then has sums of two rows of x by many output channels for each 64 rows of a warpgroup,
// and with one scale for all these channels two factors a k-tile.
constexpr bool is_x_left(ScaledBy by, int block_m) { return by == ScaledBy::tile && block_m >= kPairN; }

// kSub: chunks of a k-tile that have scales of their own.
template <ScaledBy kBy, class Output, class Scheduler, int kBlockN, int kBlockM, int kStages, int kSub>
struct ScaledLayout {
  // Not of experts, whose first row of x may lie anywhere in pieces of 16 bytes of its scales.
  static constexpr bool kXIsLeft = !kGrouped<Scheduler> && is_x_left(kBy, kBlockM);
  static constexpr int kTurns = !kXIsLeft && kBlockN == kPairN / 2 ? 2 : 1;  // in which the warpgroups take k-tiles
  static_assert(kStages % kTurns == 0);
  static constexpr int kGroupM = kBlockM, kGroupN = kXIsLeft ? kBlockN : 64;
  static constexpr bool kSplitsM = false;                                  // each warpgroup has the row scales of all rows of x
  static constexpr int kOwnM = kXIsLeft ? 0 : kBlockM * kBlockN / kPairN;  // rows of x that a warpgroup stores
  static constexpr int kWBytes = kBlockN * kLine, kXBytes = kBlockM * kLine;
  static constexpr int kStage = kWBytes + kXBytes;     // w, then x
  static constexpr int kXValues = kSub * kBlockM * 4;  // bytes: [kSub][kBlockM]
  // ScaledBy::tile: one float32. ScaledBy::row: [kSub][kBlockN] float32, or 4 exponents for each.
  static constexpr int kWValues = kBy == ScaledBy::tile ? 16 : kSub * kBlockN * 4;
  static constexpr int kValues = kStages * kStage;  // of each stage: those of x, then of w
  static constexpr int kStageValues = kXValues + kWValues;
  static constexpr int kStaging = kValues + kStages * kStageValues;
  using S = Staging<Output, kOwnM>;
  using Shared = Sharing<kBlockM, 4>;
  static constexpr int kStagingBytes = std::max(2 * S::kBuffers * S::kBufferBytes, kTurns == 2 ? Shared::kBytes : 0);
  static constexpr int kChannels = kStaging + kStagingBytes;
  static constexpr int kRowScales = kChannels + 2 * kGroupN * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kGroupM * int(sizeof(float));
  static constexpr int kClusterBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kBytes = kClusterBarriers + kClusterBarrierBytes + 1024;
  using Shares = ClusterShares<Output, kXIsLeft ? 32 : kOwnM, 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

// This thread arrives on the barrier when all cp.async that it has issued are complete.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- The producer, and the two warps that copy scales ----

constexpr int kValueThreads = 64;  // of the two warps that copy scales

// Copies the scales of x and w for each k-tile into its stage. Addresses are computed once a tile, so that a k-tile costs a
// thread little more than its copies.
template <ScaledBy kBy, class L, int kBlockN, int kBlockM, int kStages, int kSub, class Scheduler>
__device__ inline void copy_values(const ScaledParams<Scheduler>& a, const WorkOf<Scheduler>& block_work, uint32_t shared,
                                   uint32_t full, uint32_t empty, int thread) {
  const RowwiseLinear& p = a.rowwise.p;
  constexpr int kOfX = (kBlockM + kValueThreads - 1) / kValueThreads, kOfW = kBlockN / kValueThreads;
  const auto column = [](int chunk, int chunks, int groups) { return min(chunks == 1 ? chunk : chunk / chunks, groups - 1); };
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(a.rowwise.schedule, block_work, [&](const auto& work) {
    const Tile tile = tile_of(a.rowwise.tiles, work, kBlockM, kBlockN);
    const int64_t expert_scales = weight_of(work) * a.expert_scales;
    const int rows = min(kBlockM, rows_end(work, p.M) - tile.m), channels = min(kBlockN, int(p.N) - tile.n);
    [[maybe_unused]] const float* of_x[kOfX];
    if constexpr (!L::kXIsLeft) {
#pragma unroll
      for (int i = 0; i < kOfX; ++i) {
        const int m = thread + i * kValueThreads;
        of_x[i] = a.x_values + int64_t(tile.m + (m < rows ? m : 0)) * a.x_groups;
      }
    }
    [[maybe_unused]] const float* const of_tile =
        static_cast<const float*>(a.scale) + expert_scales + int64_t(tile.n / a.block_n) * a.scale_n;
    [[maybe_unused]] const char* of_w[kOfW];
    if constexpr (kBy == ScaledBy::row) {
#pragma unroll
      for (int i = 0; i < kOfW; ++i) {
        const int n = thread + i * kValueThreads;
        const int64_t first = expert_scales + (tile.n + (n < channels ? n : 0)) / a.block_n * a.scale_n;
        of_w[i] = static_cast<const char*>(a.scale) + first * (a.scale_type == Element::e8m0 ? 1 : 4);
      }
    }
#pragma unroll 1
    for (int stage = work.first_k_tile; stage < work.first_k_tile + work.k_tiles; ++stage) {
      const uint32_t to = shared + L::kValues + ring.slot() * L::kStageValues, to_w = to + L::kXValues;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if constexpr (L::kXIsLeft) {
        const int at = a.x_chunk == 1 ? stage : stage / a.x_chunk;
        if (thread * 4 < rows)
          copy<16>(to + thread * 16, a.x_values + int64_t(min(at, a.x_chunks - 1)) * a.x_groups + tile.m + thread * 4, true);
      } else {
#pragma unroll
        for (int sub = 0; sub < kSub; ++sub) {
          const int at = column(stage * kSub + sub, a.x_chunks, a.x_groups);
#pragma unroll
          for (int i = 0; i < kOfX; ++i) {
            const int m = thread + i * kValueThreads;
            if (m < rows) copy<4>(to + (sub * kBlockM + m) * 4, of_x[i] + at, true);
          }
        }
        if constexpr (kBy == ScaledBy::row) {
          const bool exponents = a.scale_type == Element::e8m0;  // four to a word
#pragma unroll 1
          for (int sub = 0; sub < (exponents ? 1 : kSub); ++sub) {
            const int at = exponents ? stage * kSub : 4 * column(stage * kSub + sub, a.w_chunks, a.w_groups);
#pragma unroll
            for (int i = 0; i < kOfW; ++i) {
              const int n = thread + i * kValueThreads;
              if (n < channels) copy<4>(to_w + (sub * kBlockN + n) * 4, of_w[i] + at, true);
            }
          }
        }
      }
      if constexpr (kBy == ScaledBy::tile)
        if (thread == 0 && a.scale_type == Element::fp32) copy<4>(to_w, of_tile + column(stage, a.w_chunks, a.w_groups), true);
      arrive_after_copies(full + 8 * ring.full());
      ring.advance();
    }
  });
}

// The producer, as rowwise_wgmma.cuh's copy_stages: this one counts k-tiles and knows BLOCK_N, whereas that one counts k and
// takes tiles of fewer output channels. One loop for both costs either kernel instructions.
template <class L, int kBlockN, int kBlockM, int kStages, bool kW, bool kX, class Scheduler>
__device__ inline void copy_scaled_stages(const RowwiseParams<Scheduler>& a, const WorkOf<Scheduler>& block_work, uint32_t shared,
                                          uint32_t full, uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(a.schedule, block_work, [&](const auto& work) {
    const Tile tile = tile_of(a.tiles, work, kBlockM, kBlockN);
    const int rows = copied_rows(rows_end(work, a.p.M), tile, kBlockM, a.copy_rows);
#pragma unroll 1
    for (int stage = work.first_k_tile; stage < work.first_k_tile + work.k_tiles; ++stage) {
      const uint32_t arrived = full + 8 * ring.full(), to = shared + ring.slot() * L::kStage;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if (kW) {
        barrier_expect(arrived, L::kWBytes + rows * kLine);
        copy_w<Scheduler>(to, &w_map, arrived, stage * kLine, tile.n, weight_of(work), a.w_policy);
      }
#pragma unroll 1
      for (int row = 0; kX && row < rows; row += a.copy_rows)
        copy_tile(to + L::kWBytes + row * kLine, &x_map, arrived, stage * kLine, tile.m + row);
      ring.advance();
    }
  });
}

// ---- The consumers ----

// A warpgroup's part of a tile, as one of its threads.
template <ScaledBy kBy, Element kType, class Output, class Scheduler, class L, int kBlockN, int kBlockM, int kStages, int kSub>
class ScaledConsumer {
  static constexpr bool kXIsLeft = L::kXIsLeft;

 public:
  static constexpr bool kHigh = L::kTurns == 1;                  // both warpgroups multiply every k-tile
  static constexpr int kColumns = kXIsLeft ? kBlockN : kBlockM;  // of the instruction
  static constexpr int kPieces =
      kXIsLeft ? kBlockM / kPairN : 1;  // of 64 rows of x each, that a warpgroup multiplies one after the other
  static constexpr int kPart = kColumns / 2;
  float sums[kPieces][kPart];

  __device__ ScaledConsumer(const ScaledParams<Scheduler>& a, const Thread& me, uint32_t shared)
      : a_(a), me_(me), shared_(shared), full_(shared + L::kBarriers), empty_(full_ + 8 * kStages), ring_(kHigh ? 0 : me.group) {
    next_ = kHigh ? 0 : me.group;
    lane_row_ = me.warp_row % 64 + me.lane / 4;
  }

  template <class Work>
  __device__ void multiply(const Work& work, const Tile& tile) {
#pragma unroll
    for (auto& piece : sums)
#pragma unroll
      for (float& sum : piece) sum = 0;
    scale_row_ = weight_of(work) * a_.expert_scales + tile.n / a_.block_n * a_.scale_n;
    if (next_ < work.k_tiles) wait();
#pragma unroll 1
    for (; next_ < work.k_tiles; next_ += L::kTurns) {
      more_ = next_ + L::kTurns < work.k_tiles, here_ = true;
      k_tile_ = work.first_k_tile + next_;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        if constexpr (kSub == 4) {
          chunk<0, 1>(piece), chunk<1, 2>(piece), chunk<2, 3>(piece), chunk<3, 4>(piece);
        } else if constexpr (kExact) {
          chunk<0, kSteps>(piece);
        } else {
          chunk<0, kSteps / 2>(piece), chunk<kSteps / 2, kSteps>(piece);
        }
      }
      if (!here_) wait();
    }
    next_ -= work.k_tiles;
  }

  // The first row of x in the tile that a warpgroup multiplies.
  __device__ int first_m() const { return kXIsLeft ? me_.group * (kBlockM / 2) : 0; }

 private:
  // What the tensor cores add up by themselves: a chunk, or half of it where results are fp16 and operands float8.
  static constexpr bool kExact = kType == Element::int8 || std::is_same_v<Output, __nv_bfloat16>;
  static constexpr int kPairs = kXIsLeft ? 1 : kPart / 4;  // of scales of x that a thread's sums have
  using Sum = WgmmaSum<kType>;

  const ScaledParams<Scheduler>& a_;
  const Thread& me_;
  uint32_t shared_, full_, empty_;
  Ring<kStages> ring_;
  int next_;           // k-tile of this warpgroup, counted from the first of its work tile
  int k_tile_;         // the same, of all
  int lane_row_;       // of the instruction's rows, the first of this thread's
  int64_t scale_row_;  // for scales of ScaledBy::tile that are no float32, which do not come through the stages
  bool more_, here_;   // whether there is a next k-tile, and has arrived

  __device__ void wait() const { barrier_wait(full_ + 8 * ring_.full(), ring_.full_parity()); }
  __device__ void free(int slot) const {
    __syncwarp();
    if (arrives(me_.lane)) barrier_arrive(empty_ + 8 * slot);
  }
  __device__ int first_n() const { return kHigh && !kXIsLeft ? me_.group * 64 : 0; }  // in the tile
  __device__ uint64_t of_w() const {
    return matrix_of_lines(lines_descriptor(shared_ + ring_.slot() * L::kStage + first_n() * kLine));
  }
  __device__ uint64_t of_x(int piece) const {
    return matrix_of_lines(lines_descriptor(shared_ + ring_.slot() * L::kStage + L::kWBytes + (first_m() + piece * 64) * kLine));
  }
  // Where the scales of x for a chunk of a stage begin.
  __device__ uint32_t x_values(int slot, int sub) const {
    return shared_ + L::kValues + slot * L::kStageValues + sub * kBlockM * 4;
  }

  // Scales of x of this thread's sums.
  __device__ void load_x_scales(int slot, int sub, int piece, float2 (&x)[kPairs]) const {
    if constexpr (kXIsLeft) {
      const uint32_t from = x_values(slot, 0) + (first_m() + piece * 64 + lane_row_) * 4;
      x[0] = {load_shared(from), load_shared(from + 8 * 4)};
    } else {
      const uint32_t from = x_values(slot, sub) + me_.quad * 8;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) x[i] = load_shared_pair(from + i * 32);
    }
  }

  // The scales of this thread's two output channels, or the tile's.
  __device__ void load_w_scales(int slot, int sub, float (&scale)[2]) const {
    const bool wide = a_.scale_type == Element::fp32;
    const uint32_t values = x_values(slot, 0) + L::kXValues;
    if constexpr (kBy == ScaledBy::tile) {
      scale[0] = wide ? load_shared(values)
                      : load_scale(a_.scale, scale_row_ + min(k_tile_ / a_.w_chunks, a_.w_groups - 1), a_.scale_type);
      scale[1] = scale[0];
    } else {
      const uint32_t from = values + (wide ? sub * kBlockN * 4 : 0) + (first_n() + lane_row_) * 4;
      const uint32_t words[2] = {load_shared_word(from), load_shared_word(from + 32)};
#pragma unroll
      for (int i = 0; i < 2; ++i) scale[i] = wide ? __uint_as_float(words[i]) : power_of_exponent(words[i] >> 8 * sub & 0xff);
    }
  }

  __device__ static void promote(float (&sums)[kPart], const Sum (&part)[kPart], const float2 (&x)[kPairs],
                                 const float (&scale)[2]) {
    if constexpr (kXIsLeft) {
      const float upper = x[0].x * scale[0], lower = x[0].y * scale[0];
#pragma unroll
      for (int i = 0; i < kPart; ++i) sums[i] = fmaf(static_cast<float>(part[i]), i % 4 < 2 ? upper : lower, sums[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const float of_x = i % 2 == 0 ? x[i / 4].x : x[i / 4].y, value = static_cast<float>(part[i]);
        if constexpr (kBy == ScaledBy::tile)
          sums[i] = fmaf(value, of_x * scale[0], sums[i]);
        else
          sums[i] = fmaf(value * scale[i % 4 / 2], of_x, sums[i]);
      }
    }
  }

  // Multiplies steps [kFirst, kEnd) of a k-tile, and adds their product to the sums. Scales are read from shared memory while the
  // tensor cores work; with the last steps the next stage's barrier is tested.
  template <int kFirst, int kEnd>
  __device__ void chunk(int piece) {
    constexpr int kOfChunk = kSub == 1 ? 0 : kFirst * kSub / kSteps;
    const int slot = ring_.slot();
    Sum part[kPart];
    if constexpr (kXIsLeft)
      wgmma::multiply<kType, kFirst, kEnd>(part, of_x(piece), of_w(), false);
    else
      wgmma::multiply<kType, kFirst, kEnd>(part, of_w(), of_x(0), false);
    float2 x[kPairs];
    float scale[2];
    load_x_scales(slot, kOfChunk, piece, x);
    load_w_scales(slot, kOfChunk, scale);
    const bool last = kEnd == kSteps && piece + 1 == kPieces;
    if (last) {
      ring_.advance(L::kTurns);
      if (more_) here_ = barrier_test(full_ + 8 * ring_.full(), ring_.full_parity());
    }
    wgmma_wait<0>();
    settle(part);
    if (last) free(slot);
    promote(sums[piece], part, x, scale);
  }
};

// ---- The kernel ----

template <ScaledBy kBy, Element kType, class Output, class Scheduler, int kBlockN, int kBlockM, int kStages, int kSub>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    scaled_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ ScaledParams<Scheduler> a) {
  using L = ScaledLayout<kBy, Output, Scheduler, kBlockN, kBlockM, kStages, kSub>;
  using Consumer = ScaledConsumer<kBy, kType, Output, Scheduler, L, kBlockN, kBlockM, kStages, kSub>;
  constexpr bool kHigh = Consumer::kHigh;
  const RowwiseParams<Scheduler>& r = a.rowwise;
  const Scheduler& s = r.schedule;
  extern __shared__ char unaligned[];
  __shared__ WorkOf<Scheduler> block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  init_block<L, kStages, kBlockM>(s, block_work, shared, /*full_arrivals=*/1 + kValueThreads);
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_scaled_stages<L, kBlockN, kBlockM, kStages, of_w, of_x>(r, block_work, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      if constexpr (!kGrouped<Scheduler>) {
        const WorkTile first = first_work(s, block_work);
        const int row = tile_of(r.tiles, first.tile, kBlockM, kBlockN).n;
        for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * kLine, row);
      }
      wait_for_last_kernel(), start_next_kernel();
      copy(kYes, std::bool_constant<kHigh>());
    } else if (!kHigh && threadIdx.x == kPair + 32) {
      wait_for_last_kernel();
      copy(std::false_type(), kYes);
    } else if (warp >= kPairWarps + 2) {
      wait_for_last_kernel();
      copy_values<kBy, L, kBlockN, kBlockM, kStages, kSub>(a, block_work, shared, full, empty, threadIdx.x - kPair - 64);
      wait_all_copies();
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
    Consumer consumer(a, me, shared);
    for_each_work</*kStreamK=*/false>(s, block_work, [&](const auto& work) {
      Tile tile = tile_of(r.tiles, work, kBlockM, kBlockN);
      tile.end_n = tile.n + kBlockN;
      if constexpr (!kHigh) tile.group_n = 0, tile.group_m = kBlockM / 2;
      if constexpr (L::kXIsLeft) tile.group_n = 0;
      Scales<L> scales;
      scales.load(product_of(r.p, work), tile, me.group, thread);
      consumer.multiply(work, tile);
      scales.store(channels, row_scales, thread);
      sync_threads_of(kGroupBarrier + me.group, 128);

      const RowwiseEpilogue<float, Output> epilogue = {static_cast<Output*>(r.p.y),
                                                       rows_end(work, r.p.M),
                                                       int(r.p.N),
                                                       false,
                                                       tile,
                                                       tile.group_n > 0 ? shared + L::kChannels : channels,
                                                       row_scales};
      if constexpr (L::kXIsLeft) {
#pragma unroll
        for (int piece = 0; piece < Consumer::kPieces; ++piece) {
          Thread in_piece = me;
          in_piece.warp_row = consumer.first_m() + piece * 64 + warp % 4 * 16;
          write_x_left_tile<Consumer::kColumns>(consumer.sums[piece], in_piece, epilogue, tile);
        }
      } else {
        finish_tile<L>(consumer.sums[0], me, epilogue, tile, !kGrouped<Scheduler> && work.k_tiles < s.k_tiles, shared);
      }
    });
  }
}

}  // namespace aoext::cuda::wgmma
