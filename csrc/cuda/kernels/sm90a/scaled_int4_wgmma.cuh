// int4 under 8-bit activations on Hopper (scaled.h): x of e4m3 or int8, w of int4 with a scale and a zero point a group.
//
// Operands. swap_ab, with w in registers: a warpgroup has 64 output channels, and unpacks a k-tile of 128 k of them into the
// fragments that wgmma takes, four instructions for four codes. x lies in shared memory as bulk tensor copies left it. (Where
// int4 becomes 8 bits in shared memory, reading both operands from there and writing one takes more than shared memory gives.)
//
// Memory. A tile has BLOCK_N = 128 output channels, in two warpgroups, by BLOCK_M = 256 or 128 rows of x, of which a warpgroup
// multiplies 128 at a time. For 128 by 256 a k-tile is 8 KiB of w and 32 of x against 1024 cycles of the tensor cores. One
// thread of a third warpgroup copies all: w, x, and the scales of the k-tile's groups.
//
// Accumulation. The tensor cores start from zero for each chunk of k that has scales of its own: 128, 64 or 32 k, kSub of them in
// a k-tile. A chunk's sums, exact of int8, are multiplied by the scale and added to float32. For 128 by 256 and groups of 128
// these are two instructions for each of a thread's 128 sums (one of float8), and unpacking takes 80: 750 cycles of all
// schedulers against 1024 of the tensor cores. While one warpgroup adds, the other multiplies: they take turns. Measured are 2050
// cycles of float8 and 2350 of int8: each wgmma takes 28 more than its 64 where its left operand is in registers, and other warps
// issue half as fast meanwhile.
//
// Zero points multiply sums of x over the chunks, which an earlier kernel computed. Both are two bf16 each, and a tile begins
// with their product, 32 chunks a step, whose x the producer copies as it does any other.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include "cuda/kernels/chunk_sums.h"
#include "cuda/kernels/scaled.cuh"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"
#include "cuda/kernels/sm90a/turns.cuh"

namespace aoext::cuda::wgmma {

struct ScaledInt4Params {
  RowwiseParams<TileScheduler> rowwise;  // row_scale is the scale of x
  const void* zero;
  int64_t scale_k;  // from a group's scales and zeros to the next one's
  int groups, group_chunks;
  int chunks, sum_lines;  // of x; of a row's sums
  Element scale_type;
};

// ---- Shared memory ----

template <class Output, int kBlockM, int kStages, int kSub>
struct ScaledInt4Layout {
  static constexpr int kTurns = 1, kGroupM = kBlockM, kGroupN = 64, kOwnM = kBlockM;
  static constexpr bool kSplitsM = false;
  static constexpr int kWLine = kLine / 2;
  static constexpr int kWBytes = kPairN * kWLine, kXBytes = kBlockM * kLine;
  static constexpr int kStage = kWBytes + kXBytes;                                     // w, then x
  static constexpr int kChunkScales = kPairN * 4, kStageScales = kSub * kChunkScales;  // bytes
  static constexpr int kScales = kStages * kStage, kStaging = kScales + kStages * kStageScales;
  using S = Staging<Output, kOwnM>;
  static constexpr int kChannels = kStaging + 2 * S::kBuffers * S::kBufferBytes;
  static constexpr int kRowScales = kChannels + 2 * kGroupN * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kGroupM * int(sizeof(float));
  static constexpr int kClusterBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kBytes = kClusterBarriers + kClusterBarrierBytes + 1024;
  using Shares = ClusterShares<Output, kOwnM, 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

// ---- int4 to 8 bits ----

// Byte i is that of `low`, `high` whose number nibble i of `indices` holds; from 8 on, the sign of byte index - 8, eight times.
__device__ inline uint32_t look_up(uint32_t low, uint32_t high, uint32_t indices) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(indices));
  return bytes;
}

// Four codes as bytes: 2 q as int8, 2 q · 2^-9 as e4m3, whose codes up to 16 count in steps of that. Two tables, of which one
// gives 0: for q >= 0 the byte, for q < 0 half of it, so that the sign stays out of a table's bytes.
template <Element kType>
__device__ inline uint32_t unpack_nibbles(uint32_t four) {
  const uint32_t positive = look_up(0x06040200, 0x0e0c0a08, four), opposite = four ^ 0x8888;
  const uint32_t negative =
      kType == Element::int8 ? look_up(0x7b7a7978, 0x7f7e7d7c, opposite) : look_up(0x45464748, 0x41424344, opposite);
  return positive + 2 * negative;
}

// The factor that undoes 2 or 2^-8.
template <Element kType>
constexpr float kCodeStep = kType == Element::int8 ? 0.5f : 0x1p8f;

// ---- The producer, one thread ----

template <class L, int kBlockM, int kStages, int kSub>
__device__ inline void copy_int4_stages(const ScaledInt4Params& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                        uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map,
                                        const CUtensorMap& scale_map, const CUtensorMap& sums_map) {
  const RowwiseParams<TileScheduler>& r = a.rowwise;
  const int scale_bytes = kSub * kPairN * (a.scale_type == Element::fp32 ? 4 : 2);
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(r.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(r.tiles, work.tile, kBlockM, kPairN);
    const int rows = copied_rows(r.p.M, tile, kBlockM, r.copy_rows);
    const auto copy_rows = [&](const CUtensorMap& map, uint32_t arrived, int column) {
      const uint32_t to = shared + ring.slot() * L::kStage + L::kWBytes;
#pragma unroll 1
      for (int row = 0; row < rows; row += r.copy_rows) copy_tile(to + row * kLine, &map, arrived, column, tile.m + row);
    };
    const int lines = work.first_k_tile == 0 ? a.sum_lines : 0;
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      const uint32_t arrived = full + 8 * ring.full();
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      barrier_expect(arrived, rows * kLine);
      copy_rows(sums_map, arrived, line * kSumLine);
      ring.advance();
    }
#pragma unroll 1
    for (int k_tile = work.first_k_tile; k_tile < work.first_k_tile + work.k_tiles; ++k_tile) {
      const uint32_t arrived = full + 8 * ring.full();
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      barrier_expect(arrived, L::kWBytes + rows * kLine + scale_bytes);
      copy_tile(shared + ring.slot() * L::kStage, &w_map, arrived, k_tile * L::kWLine, tile.n, r.w_policy);
      copy_rows(x_map, arrived, k_tile * kLine);
#pragma unroll
      for (int sub = 0; sub < kSub; ++sub)
        copy_tile(shared + L::kScales + ring.slot() * L::kStageScales + sub * L::kChunkScales, &scale_map, arrived, tile.n,
                  min((k_tile * kSub + sub) / a.group_chunks, a.groups - 1));
      ring.advance();
    }
  });
}

// ---- Zero points ----

// Two floats as bf16, rounded, and what is left of them likewise.
struct SplitPair {
  uint32_t high, low;
  __device__ SplitPair(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    high = bits<uint32_t>(pair);
    low = rounded_pair<__nv_bfloat16>(a - __low2float(pair), b - __high2float(pair));
  }
};

// Zero points of output channels n and n + 8 for a line's 32 chunks from `first` on, as fragments of two steps of 16.
struct ZeroFragments {
  uint32_t high[2][4], low[2][4];

  __device__ ZeroFragments(const ScaledInt4Params& a, int first, int n, int quad) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float z[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int chunk = first + i / 4 * 16 + i % 4 / 2 * 8 + 2 * quad + j, channel = n + i % 2 * 8;
        const int64_t at = chunk / a.group_chunks * a.scale_k + channel;
        z[j] = chunk < a.chunks && channel < a.rowwise.p.N ? load_float(a.zero, at, a.scale_type) : 0;
      }
      const SplitPair pair(z[0], z[1]);
      high[i / 4][i % 4] = pair.high, low[i / 4][i % 4] = pair.low;
    }
  }
};

// sums (+)= zeros · a line of sums of x.
template <int kSums>
__device__ inline void multiply_zeros(float (&sums)[kSums], const ZeroFragments& z, uint64_t x, bool with_low, bool add) {
  constexpr int kStepOf16 = 2, kRemainders = kSumChunks * 2 / 16;  // in a descriptor
  using W = Wgmma<2 * kSums>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    W::multiply(__nv_bfloat16(), sums, z.high[i], x + i * kStepOf16, add || i > 0);
    W::multiply(__nv_bfloat16(), sums, z.high[i], x + kRemainders + i * kStepOf16, true);
  }
  if (with_low)
#pragma unroll
    for (int i = 0; i < 2; ++i) W::multiply(__nv_bfloat16(), sums, z.low[i], x + i * kStepOf16, true);
}

// ---- The consumers ----

// One warpgroup's 64 output channels of a tile, as one of its threads.
template <Element kType, class L, int kBlockM, int kStages, int kSub>
class Int4Consumer {
 public:
  static constexpr int kPieceM = 128;  // rows of x that it multiplies at a time, as registers allow
  static constexpr int kPieces = kBlockM / kPieceM;
  float sums[kPieces][kPieceM / 2];

  __device__ Int4Consumer(const ScaledInt4Params& a, const Thread& me, uint32_t shared)
      : a_(a), me_(me), shared_(shared), full_(shared + L::kBarriers), empty_(full_ + 8 * kStages), turns_(me.group) {
    w_ = shared + me.row() * L::kWLine + ((me.row() >> 1 & 3) << 4) + 2 * me.quad;
  }

  __device__ void end() const { turns_.end(); }

  // The sums begin with the zero points' part.
  __device__ void begin(const Tile& tile, int lines) {
    if (lines == 0)
#pragma unroll
      for (auto& piece : sums)
#pragma unroll
        for (float& sum : piece) sum = 0;
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      const ZeroFragments zeros(a_, line * kSumChunks, tile.n + me_.row(), me_.quad);
      wait();
      wgmma_fence();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        multiply_zeros(sums[piece], zeros, x_of(piece), a_.scale_type != Element::bf16, line > 0);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (auto& piece : sums) settle(piece);
      free(ring_.slot());
      ring_.advance();
    }
  }

  __device__ void multiply(int k_tiles) {
    if (k_tiles == 0) return;
    wait();
    load();
    unpack();
#pragma unroll 1
    for (int left = k_tiles; left > 0; --left) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        chunk<0>(piece, left);
        if constexpr (kSub > 1) chunk<1>(piece, left);
        if constexpr (kSub > 2) chunk<2>(piece, left), chunk<3>(piece, left);
      }
      if (left > 1) unpack();
    }
  }

 private:
  static constexpr bool kTakesTurns = kSub < 4;
  using Sum = WgmmaSum<kType>;

  const ScaledInt4Params& a_;
  const Thread& me_;
  uint32_t shared_, full_, empty_, w_;
  Ring<kStages> ring_;
  Turns turns_;
  uint32_t fragments_[kSteps][4];

  __device__ void wait() const { barrier_wait(full_ + 8 * ring_.full(), ring_.full_parity()); }
  __device__ void free(int slot) const {
    __syncwarp();
    if (arrives(me_.lane)) barrier_arrive(empty_ + 8 * slot);
  }
  __device__ uint64_t x_of(int piece) const {
    return matrix_of_lines(lines_descriptor(shared_ + ring_.slot() * L::kStage + L::kWBytes + piece * kPieceM * kLine));
  }

  // The nibbles of the current stage, in the fragments' places: of a step lane t of four has four k from 4 t on, and from
  // 4 t + 16 on.
  __device__ void load() {
    const uint32_t from = w_ + ring_.slot() * L::kStage;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        fragments_[step][i] = load_shared_half((from ^ (step << 4)) + i / 2 * 8 + i % 2 * (8 * L::kWLine));
  }
  __device__ void unpack() {
#pragma unroll
    for (auto& step : fragments_)
#pragma unroll
      for (uint32_t& four : step) four = unpack_nibbles<kType>(four);
  }

  // The scales of this thread's two output channels.
  __device__ void load_scales(int slot, int sub, float (&scale)[2]) const {
    const uint32_t from = shared_ + L::kScales + slot * L::kStageScales + sub * L::kChunkScales;
    if (a_.scale_type == Element::fp32) {
      scale[0] = load_shared(from + me_.row() * 4), scale[1] = load_shared(from + me_.row() * 4 + 32);
    } else {
      const uint32_t halves[2] = {load_shared_half(from + me_.row() * 2), load_shared_half(from + me_.row() * 2 + 16)};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float of_half = __half2float(__ushort_as_half(static_cast<unsigned short>(halves[i])));
        scale[i] = a_.scale_type == Element::bf16 ? __uint_as_float(halves[i] << 16) : of_half;
      }
    }
    scale[0] *= kCodeStep<kType>, scale[1] *= kCodeStep<kType>;
  }

  // Multiplies one chunk of k of a piece, and adds the product to the sums. With the last of a k-tile the next one's nibbles are
  // loaded.
  template <int kChunk>
  __device__ void chunk(int piece, int left) {
    constexpr int kFirst = kChunk * kSteps / kSub, kEnd = (kChunk + 1) * kSteps / kSub;
    const bool last = kEnd == kSteps && piece + 1 == kPieces;
    const int slot = ring_.slot();
    const uint64_t x = x_of(piece);
    Sum part[kPieceM / 2];
    if (kTakesTurns) turns_.wait();
    wgmma_fence();
#pragma unroll
    for (int step = kFirst; step < kEnd; ++step) {
      if (kTakesTurns && step + 1 == kEnd) wgmma_commit();
      Wgmma<kPieceM>::multiply(std::integral_constant<Element, kType>(), part, fragments_[step], x + 2 * step, step > kFirst);
    }
    wgmma_commit();
    float scale[2];
    load_scales(slot, kChunk, scale);
    if (kTakesTurns) wgmma_wait<1>(), turns_.pass();
    bool here = true;
    if (last) {
      ring_.advance();
      here = left == 1 || barrier_test(full_ + 8 * ring_.full(), ring_.full_parity());
    }
    wgmma_wait<0>();
    settle(part);
    if (last) {
      free(slot);
      if (!here) wait();
      if (left > 1) load();
    }
#pragma unroll
    for (int i = 0; i < kPieceM / 2; ++i) sums[piece][i] = fmaf(static_cast<float>(part[i]), scale[i % 4 / 2], sums[piece][i]);
  }
};

// ---- The kernel ----

// Registers of a producer and of a consumer thread.
constexpr int kInt4CopyRegisters = 24, kInt4MultiplyRegisters = 240;

template <Element kType, class Output, int kBlockM, int kStages, int kSub>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    scaled_int4_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap sums_map,
                      const __grid_constant__ ScaledInt4Params a) {
  using L = ScaledInt4Layout<Output, kBlockM, kStages, kSub>;
  const RowwiseParams<TileScheduler>& r = a.rowwise;
  const TileScheduler& s = r.schedule;
  extern __shared__ char unaligned[];
  __shared__ BlockWork block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  init_block<L, kStages, kBlockM>(s, block_work, shared, /*full_arrivals=*/1);
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<kInt4CopyRegisters>();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map), prefetch_map(&scale_map), prefetch_map(&sums_map);
      const WorkTile first = first_work(s, block_work);
      const int row = tile_of(r.tiles, first.tile, kBlockM, kPairN).n;
      for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * L::kWLine, row);
      wait_for_last_kernel(), start_next_kernel();
      const uint32_t full = shared + L::kBarriers;
      copy_int4_stages<L, kBlockM, kStages, kSub>(a, block_work, shared, full, full + 8 * kStages, x_map, w_map, scale_map,
                                                  sums_map);
    }
    __syncwarp();
    if (s.cluster > 1) cluster_wait();
  } else {
    claim_registers<kInt4MultiplyRegisters>();
    wait_for_last_kernel();
    if (s.cluster > 1) cluster_wait();
    const int thread = threadIdx.x % 128;
    const Thread me = {0, warp / 4, lane, lane % 4, warp * 16};
    const uint32_t channels = shared + L::kChannels + me.group * L::kGroupN * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kGroupM * int(sizeof(float));
    Int4Consumer<kType, L, kBlockM, kStages, kSub> consumer(a, me, shared);
    for_each_work</*kStreamK=*/false>(s, block_work, [&](const WorkTile& work) {
      Tile tile = tile_of(r.tiles, work.tile, kBlockM, kPairN);
      tile.end_n = tile.n + kPairN;
      consumer.begin(tile, work.first_k_tile == 0 ? a.sum_lines : 0);
      consumer.multiply(work.k_tiles);
      Scales<L> scales;
      scales.load(r.p, tile, me.group, thread);
      scales.store(channels, row_scales, thread);
      sync_threads_of(kGroupBarrier + me.group, 128);
      const RowwiseEpilogue<float, Output> epilogue = {static_cast<Output*>(r.p.y), int(r.p.M), int(r.p.N), false, tile,
                                                       shared + L::kChannels,       row_scales};
      auto& sums = reinterpret_cast<float (&)[kBlockM / 2]>(consumer.sums);
      finish_tile<L>(sums, me, epilogue, tile, work.k_tiles < s.k_tiles, shared);
    });
    consumer.end();
  }
}

}  // namespace aoext::cuda::wgmma
