// 8-bit products with a scale a block on Hopper (scaled.h): x of e4m3 or int8 by w of the same type, or of int4.
//
// It walks memory as rowwise_wgmma.cuh does: swap_ab, a tile has 128 or 64 output channels by BLOCK_M rows of x, a k-tile 128 k,
// two warpgroups consume and one produces. The difference is what becomes of a k-tile's product: the tensor cores start from zero
// for each block of k, and the sums are multiplied by the scales of that block and added to float32 in other registers. Scales
// lie beside the operands in each stage: two warps of the producer warpgroup bring them by cp.async, which arrives on the stage's
// barrier. Their addresses are computed once a tile: with addresses and divisions in every k-tile these two warps were slower
// than all others.
//
// int4 becomes 8 bits in shared memory, a k-tile ahead of the tensor cores, by the warpgroup that multiplies it: 16 q as int8, so
// that a byte needs no sign extension, and q as e4m3, whose subnormal numbers count in steps of 2^-9. Zero points multiply sums
// of x over chunks of k, which an earlier kernel computed: a small product of its own, with which a tile begins.
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
// channel; int4.
enum class ScaledBy { tile, row, group };

struct ScaledParams {
  RowwiseParams rowwise;  // of int4, row_scale is the scale of x
  const void* scale;      // as in ScaledLinear
  const void* zero;
  // Scales of x, [M, x_groups]. Where x is the left operand, by chunks, [x_chunks, x_groups], so that rows are neighbours. Of
  // int4, sums of x over chunks, x_groups rows of x for each 16 chunks (place_of_sum).
  const float* x_values;
  int64_t scale_n, scale_k;
  int block_n, x_groups, w_groups;
  int x_chunks, w_chunks;  // chunks of k that share a value; x's by chunks as above
  int x_chunk;             // k-tiles that share one of these
  Element scale_type;
};

// Whether x is the left operand. A thread then has sums of two rows of x by many output channels for each 64 rows of a warpgroup,
// and with one scale for all these channels two factors a k-tile.
constexpr bool is_x_left(ScaledBy by, int block_m) { return by == ScaledBy::tile && block_m >= kPairN; }

// kSub: chunks of a k-tile that have scales of their own.
template <ScaledBy kBy, class Output, int kBlockN, int kBlockM, int kStages, int kSub>
struct ScaledLayout {
  static constexpr bool kInt4 = kBy == ScaledBy::group;
  static constexpr bool kXIsLeft = is_x_left(kBy, kBlockM), kByChunks = kXIsLeft || kInt4;  // x's scales or sums come by chunks
  static constexpr int kTurns = !kXIsLeft && kBlockN == kPairN / 2 ? 2 : 1;  // in which the warpgroups take k-tiles
  static_assert(kStages % kTurns == 0);
  static constexpr int kGroupM = kBlockM, kGroupN = kXIsLeft ? kBlockN : 64;
  static constexpr bool kSplitsM = false;                                  // each warpgroup has the row scales of all rows of x
  static constexpr int kOwnM = kXIsLeft ? 0 : kBlockM * kBlockN / kPairN;  // rows of x that a warpgroup stores
  static constexpr int kWLine = kInt4 ? kLine / 2 : kLine;
  static constexpr int kWBytes = kBlockN * kWLine, kXBytes = kBlockM * kLine;
  static constexpr int kStage = kWBytes + kXBytes;                 // w, then x
  static constexpr int kXValues = kInt4 ? 0 : kSub * kBlockM * 4;  // bytes: [kSub][kBlockM]
  // ScaledBy::tile: one float32. ScaledBy::row: [kSub][kBlockN] float32, or 4 exponents for each. ScaledBy::group:
  // [kSub][kBlockN] of 2 or 4 bytes.
  static constexpr int kWValues = kBy == ScaledBy::tile ? 16 : kSub * kBlockN * 4;
  // Where int4 becomes 8 bits: two buffers of 64 output channels for each warpgroup.
  static constexpr int kExpanded = kStages * kStage, kExpandedBytes = kInt4 ? 64 * kLine : 0;
  static constexpr int kValues = kExpanded + 4 * kExpandedBytes;  // of each stage: those of x, then of w
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
  // Of a producer thread, which keeps more addresses where w has scales in the stages, and of a consumer.
  static constexpr int kCopyRegisters = kBy == ScaledBy::group ? 56 : 40, kMultiplyRegisters = kBy == ScaledBy::group ? 224 : 232;
  using Shares = ClusterShares<Output, kXIsLeft ? 32 : kOwnM, 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

// This thread arrives on the barrier when all cp.async that it has issued are complete.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

constexpr int kTurnBarrier = 6;  // a named barrier for each of two warpgroups

__device__ inline void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- int4 to 8 bits ----

// The nibbles of each half of a word as bytes: 16 q as int8, q · 2^-9 as e4m3.
template <Element kType>
__device__ inline void unpack_nibbles(uint32_t v, uint32_t& low, uint32_t& high) {
  if constexpr (kType == Element::int8) {
    const uint32_t even = v << 4 & 0xf0f0f0f0, odd = v & 0xf0f0f0f0;
    low = __byte_perm(even, odd, 0x5140), high = __byte_perm(even, odd, 0x7362);
  } else {
    // |q| is its own code up to 8; of a negative q it is 16 - n: 15 - n, and 1 with the sign.
    const auto code = [](uint32_t n) {
      const uint32_t sign = n >> 3 & 0x01010101;
      return (n ^ sign * 15) + sign * 0x81;
    };
    const uint32_t even = code(v & 0x0f0f0f0f), odd = code(v >> 4 & 0x0f0f0f0f);
    low = __byte_perm(even, odd, 0x5140), high = __byte_perm(even, odd, 0x7362);
  }
}

// The factor that undoes 16 or 2^-9.
template <Element kType>
constexpr float kCodeStep = kType == Element::int8 ? 0x1p-4f : 0x1p9f;

// 64 output channels of a stage, from the swizzled 64 bytes of a bulk tensor copy to lines of 128: a thread has half a row.
template <Element kType>
__device__ inline void expand(uint32_t from, uint32_t to, int thread) {
  const int row = thread / 2, half = thread % 2;
  const uint32_t line = to + row * kLine;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 packed = load_shared_16(from + row * (kLine / 2) + ((2 * half + i ^ (row >> 1 & 3)) << 4));
    uint4 first, second;
    unpack_nibbles<kType>(packed.x, first.x, first.y), unpack_nibbles<kType>(packed.y, first.z, first.w);
    unpack_nibbles<kType>(packed.z, second.x, second.y), unpack_nibbles<kType>(packed.w, second.z, second.w);
    const int chunk = 4 * half + 2 * i;
    store_shared_16(line + ((chunk ^ (row & 7)) << 4), first), store_shared_16(line + ((chunk + 1 ^ (row & 7)) << 4), second);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Zero points of int4 ----

// The upper halves of two floats' bits as bf16, rounded, and what is left of them likewise.
struct SplitPair {
  uint32_t high, low;
  __device__ SplitPair(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    high = bits<uint32_t>(pair);
    low = rounded_pair<__nv_bfloat16>(a - __low2float(pair), b - __high2float(pair));
  }
};

// Sums of x over chunks as add_zeros reads them: of 16 chunks and a row of x four lanes have 16 bytes each, lane t that of
// chunks 2t, 2t + 1, 2t + 8 and 2t + 9, first their bf16 and then what these leave over. The place of a chunk's, in bf16.
constexpr int kSumsOfBlock = 16;  // chunks
__host__ __device__ constexpr int64_t place_of_sum(int chunk, int64_t m, int64_t pitch, bool remainder) {
  const int in_block = chunk % kSumsOfBlock;
  return ((chunk / kSumsOfBlock * pitch + m) * 4 + in_block % 8 / 2) * 8 + (remainder * 2 + in_block / 8) * 2 + in_block % 2;
}

// sums += zero[n, c] · sum of x[m, k] over chunk c, of chunks [first, end), by mma.sync, whose sums lie as those of the engine
// do. Both factors are two bf16 each.
template <int kBlockM>
__device__ inline void add_zeros(float (&sums)[kBlockM / 2], const ScaledParams& a, int first, int end, int n, int m, int lane) {
  const RowwiseLinear& p = a.rowwise.p;
  const int quad = lane % 4, own = m + lane / 4;
#pragma unroll 1
  for (int block = first / kSumsOfBlock; block * kSumsOfBlock < end; ++block) {
    uint4 x[kBlockM / 8];
#pragma unroll
    for (int j = 0; j < kBlockM / 8; ++j)
      x[j] = own + 8 * j < p.M
                 ? reinterpret_cast<const uint4*>(a.x_values)[(int64_t(block) * a.x_groups + own + 8 * j) * 4 + quad]
                 : uint4{};
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float z[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = block * kSumsOfBlock + 2 * quad + i / 2 * 8 + j, row = n + i % 2 * 8;
        const int64_t at = (a.w_chunks == 1 ? c : c / a.w_chunks) * a.scale_k + row;
        z[j] = c >= first && c < end && row < p.N ? load_float(a.zero, at, a.scale_type) : 0;
      }
      const SplitPair pair(z[0], z[1]);
      high[i] = pair.high, low[i] = pair.low;
    }
#pragma unroll
    for (int j = 0; j < kBlockM / 8; ++j) {
      auto& d = *reinterpret_cast<float (*)[4]>(sums + 4 * j);
      mma<__nv_bfloat16>(d, high, x[j].x, x[j].y);
      mma<__nv_bfloat16>(d, high, x[j].z, x[j].w);
      if (a.scale_type != Element::bf16) mma<__nv_bfloat16>(d, low, x[j].x, x[j].y);
    }
  }
}

// ---- The kernel ----

constexpr int kValueThreads = 64;  // of the two warps that copy scales

// Copies the scales of x and w for each k-tile into its stage. Addresses are computed once a tile, so that a k-tile costs a
// thread little more than its copies.
template <ScaledBy kBy, class L, int kBlockN, int kBlockM, int kStages, int kSub>
__device__ inline void copy_values(const ScaledParams& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                   uint32_t empty, int thread) {
  const RowwiseLinear& p = a.rowwise.p;
  constexpr int kOfX = (kBlockM + kValueThreads - 1) / kValueThreads, kOfW = kBlockN / kValueThreads;
  const auto column = [](int chunk, int chunks, int groups) { return min(chunks == 1 ? chunk : chunk / chunks, groups - 1); };
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(a.rowwise.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(a.rowwise.tiles, work.tile, kBlockM, kBlockN);
    const int rows = min(kBlockM, int(p.M) - tile.m), channels = min(kBlockN, int(p.N) - tile.n);
    [[maybe_unused]] const float* of_x[kOfX];
    if constexpr (!L::kByChunks) {
#pragma unroll
      for (int i = 0; i < kOfX; ++i) {
        const int m = thread + i * kValueThreads;
        of_x[i] = a.x_values + int64_t(tile.m + (m < rows ? m : 0)) * a.x_groups;
      }
    }
    [[maybe_unused]] const float* const of_tile = static_cast<const float*>(a.scale) + int64_t(tile.n / a.block_n) * a.scale_n;
    [[maybe_unused]] const char* of_w[kOfW];
    if constexpr (kBy == ScaledBy::row) {
#pragma unroll
      for (int i = 0; i < kOfW; ++i) {
        const int n = thread + i * kValueThreads;
        const int64_t first = (tile.n + (n < channels ? n : 0)) / a.block_n * a.scale_n;
        of_w[i] = static_cast<const char*>(a.scale) + first * (a.scale_type == Element::e8m0 ? 1 : 4);
      }
    }
#pragma unroll 1
    for (int stage = work.first_k_tile; stage < work.first_k_tile + work.k_tiles; ++stage) {
      const uint32_t to = shared + L::kValues + ring.slot() * L::kStageValues, to_w = to + L::kXValues;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if constexpr (kBy == ScaledBy::group) {
        const int bytes = a.scale_type == Element::fp32 ? 4 : 2;
#pragma unroll 1
        for (int sub = 0; sub < kSub; ++sub) {
          const int64_t first = column(stage * kSub + sub, a.w_chunks, a.w_groups) * a.scale_k + tile.n;
          if (thread * 16 < channels * bytes)
            copy<16>(to_w + sub * kBlockN * 4 + thread * 16, static_cast<const char*>(a.scale) + first * bytes + thread * 16,
                     true);
        }
      } else if constexpr (L::kByChunks) {
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
template <class L, int kBlockN, int kBlockM, int kStages, bool kW, bool kX>
__device__ inline void copy_scaled_stages(const RowwiseParams& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                          uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  for_each_work</*kStreamK=*/false>(a.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(a.tiles, work.tile, kBlockM, kBlockN);
    const int rows = copied_rows(a.p.M, tile, kBlockM, a.copy_rows);
#pragma unroll 1
    for (int stage = work.first_k_tile; stage < work.first_k_tile + work.k_tiles; ++stage) {
      const uint32_t arrived = full + 8 * ring.full(), to = shared + ring.slot() * L::kStage;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if (kW) {
        barrier_expect(arrived, L::kWBytes + rows * kLine);
        copy_tile(to, &w_map, arrived, stage * L::kWLine, tile.n, a.w_policy);
      }
#pragma unroll 1
      for (int row = 0; kX && row < rows; row += a.copy_rows)
        copy_tile(to + L::kWBytes + row * kLine, &x_map, arrived, stage * kLine, tile.m + row);
      ring.advance();
    }
  });
}

template <ScaledBy kBy, Element kType, class Output, int kBlockN, int kBlockM, int kStages, int kSub>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    scaled_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ ScaledParams a) {
  using L = ScaledLayout<kBy, Output, kBlockN, kBlockM, kStages, kSub>;
  constexpr bool kInt4 = kBy == ScaledBy::group, kXIsLeft = L::kXIsLeft;
  constexpr bool kHigh = L::kTurns == 1;  // both warpgroups multiply every k-tile
  constexpr int kTurns = L::kTurns;
  constexpr int kColumns = kXIsLeft ? kBlockN : kBlockM;  // of the instruction
  constexpr int kPieces =
      kXIsLeft ? kBlockM / kPairN : 1;  // of 64 rows of x each, that a warpgroup multiplies one after the other
  constexpr int kPart = kColumns / 2;
  using Sum = WgmmaSum<kType>;
  const RowwiseParams& r = a.rowwise;
  const TileScheduler& s = r.schedule;
  extern __shared__ char unaligned[];
  __shared__ BlockWork block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) init_block<L, kStages>(s, block_work, shared, /*full_arrivals=*/1 + kValueThreads);
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<L::kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_scaled_stages<L, kBlockN, kBlockM, kStages, of_w, of_x>(r, block_work, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const WorkTile first = first_work(s, block_work);
      const int row = tile_of(r.tiles, first.tile, kBlockM, kBlockN).n;
      for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * L::kWLine, row);
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
    claim_registers<L::kMultiplyRegisters>();
    wait_for_last_kernel();
    if (s.cluster > 1) cluster_wait();
    const int thread = threadIdx.x % 128;
    const Thread me = {0, warp / 4, lane, lane % 4, warp * 16};
    const int first_row = kHigh && !kXIsLeft ? me.group * 64 : 0;  // in the tile
    const int lane_row = warp % 4 * 16 + lane / 4, row = first_row + lane_row;
    const int first_m = kXIsLeft ? me.group * (kBlockM / 2) : 0;
    const uint32_t channels = shared + L::kChannels + me.group * L::kGroupN * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kGroupM * int(sizeof(float));
    // Where both warpgroups multiply every k-tile, they use the tensor cores in turns, or both would wait for them and then add
    // at the same time. A warpgroup's turn ends when the last of its products begins.
    constexpr bool kTakesTurns = kHigh && kSub == 1;
    if (kTakesTurns && me.group == 1) arrive_at(kTurnBarrier, kPair);
    Ring<kStages> ring(kHigh ? 0 : me.group);
    int next = kHigh ? 0 : me.group;  // k-tile of this warpgroup, counted from the first of its work tile
    float sums[kPieces * kPart];

    const auto wait = [&] { barrier_wait(full + 8 * ring.full(), ring.full_parity()); };
    const auto free = [&](int slot) {
      __syncwarp();
      if (arrives(lane)) barrier_arrive(empty + 8 * slot);
    };
    int expanded = 0;  // which of the two buffers has the current k-tile
    const auto place = [&](int which) { return shared + L::kExpanded + (2 * me.group + which) * L::kExpandedBytes; };
    const auto of_w = [&] {
      return matrix_of_lines(lines_descriptor(kInt4 ? place(expanded) : shared + ring.slot() * L::kStage + first_row * kLine));
    };
    const auto of_x = [&](int piece) {
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + L::kWBytes + (first_m + piece * 64) * kLine));
    };
    // Of a chunk in a stage: where the scales of x begin; the scales of w.
    const auto x_values = [&](int slot, int sub) { return shared + L::kValues + slot * L::kStageValues + sub * kBlockM * 4; };
    const bool wide = a.scale_type == Element::fp32;
    const auto w_values = [&](int slot, int sub, float (&v)[2]) {  // of this thread's two output channels
      const uint32_t values = shared + L::kValues + slot * L::kStageValues + L::kXValues;
      if constexpr (kInt4) {
        const uint32_t from = values + sub * kBlockN * 4;
        if (wide) {
          v[0] = load_shared(from + row * 4), v[1] = load_shared(from + row * 4 + 32);
        } else {
          const uint32_t halves[2] = {load_shared_half(from + row * 2), load_shared_half(from + row * 2 + 16)};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float of_half = __half2float(__ushort_as_half(static_cast<unsigned short>(halves[i])));
            v[i] = a.scale_type == Element::bf16 ? __uint_as_float(halves[i] << 16) : of_half;
          }
        }
      } else {
        const uint32_t words[2] = {load_shared_word(values + (wide ? sub * kBlockN * 4 : 0) + row * 4),
                                   load_shared_word(values + (wide ? sub * kBlockN * 4 : 0) + row * 4 + 32)};
#pragma unroll
        for (int i = 0; i < 2; ++i) v[i] = wide ? __uint_as_float(words[i]) : power_of_exponent(words[i] >> 8 * sub & 0xff);
      }
    };

    for_each_work</*kStreamK=*/false>(s, block_work, [&](const WorkTile& work) {
      Tile tile = tile_of(r.tiles, work.tile, kBlockM, kBlockN);
      tile.end_n = tile.n + kBlockN;
      if constexpr (!kHigh) tile.group_n = 0, tile.group_m = kBlockM / 2;
      if constexpr (kXIsLeft) tile.group_n = 0;
      Scales<L> scales;
      scales.load(r.p, tile, me.group, thread);
#pragma unroll
      for (int i = 0; i < kPieces * kPart; ++i) sums[i] = 0;

      if constexpr (kInt4)
        if (kHigh || me.group == 0)
          add_zeros<kBlockM>(sums, a, work.first_k_tile * kSub, min((work.first_k_tile + work.k_tiles) * kSub, a.x_chunks),
                             tile.n + row, tile.m, lane);

      // For scales of ScaledBy::tile that are no float32, which do not come through the stages.
      const int64_t scale_row = tile.n / a.block_n * a.scale_n;
      const auto expand_stage = [&](int to) {
        if constexpr (kInt4) expand<kType>(shared + ring.slot() * L::kStage + first_row * L::kWLine, place(to), thread);
      };
      if (next < work.k_tiles) {
        wait();
        expand_stage(expanded);
      }
#pragma unroll 1
      for (; next < work.k_tiles; next += kTurns) {
        const bool more = next + kTurns < work.k_tiles;
        const int slot = ring.slot();
        bool here = true;
        Sum part[kPart];
        // Multiplies steps [kFirst, kEnd) of a k-tile, and adds their product to the sums. Scales are read from shared memory
        // while the tensor cores work; with the last steps the next stage's barrier is tested.
        const auto chunk = [&]<int kFirst, int kEnd>(int piece) {
          [[maybe_unused]] constexpr int kOfChunk = kSub == 1 ? 0 : kFirst * kSub / kSteps;
          const auto issue = [&]<int kFrom, int kTo>() {
            if constexpr (kXIsLeft) {
              multiply<kType, kFrom, kTo>(part, of_x(piece), of_w(), kFrom > kFirst);
            } else {
              multiply<kType, kFrom, kTo>(part, of_w(), of_x(0), kFrom > kFirst);
            }
          };
          if constexpr (kTakesTurns) {
            sync_threads_of(kTurnBarrier + me.group, kPair);
            issue.template operator()<kFirst, kEnd - 1>(), issue.template operator()<kEnd - 1, kEnd>();
          } else {
            if constexpr (kInt4 && kFirst == 0)
              sync_threads_of(kGroupBarrier + me.group, 128);  // all of the warpgroup have expanded
            issue.template operator()<kFirst, kEnd>();
          }

          constexpr int kPairs = kXIsLeft ? 1 : kPart / 4;
          [[maybe_unused]] float2 x[kPairs];
          [[maybe_unused]] float scale[2];
          if constexpr (kXIsLeft) {
            const uint32_t from = x_values(slot, 0) + (first_m + piece * 64 + lane_row) * 4;
            x[0] = {load_shared(from), load_shared(from + 8 * 4)};
          } else if constexpr (!kInt4) {
            const uint32_t from = x_values(slot, kOfChunk) + me.quad * 8;
#pragma unroll
            for (int i = 0; i < kPairs; ++i) x[i] = load_shared_pair(from + i * 32);
          }
          if constexpr (kBy == ScaledBy::tile) {
            if (wide)
              scale[0] = load_shared(x_values(slot, 0) + L::kXValues);
            else
              scale[0] =
                  load_scale(a.scale, scale_row + min((work.first_k_tile + next) / a.w_chunks, a.w_groups - 1), a.scale_type);
            scale[1] = scale[0];
          } else {
            w_values(slot, kOfChunk, scale);
            if constexpr (kInt4) scale[0] *= kCodeStep<kType>, scale[1] *= kCodeStep<kType>;
          }
          if constexpr (kTakesTurns) {
            wgmma_wait<1>();
            arrive_at(kTurnBarrier + (me.group ^ 1), kPair);
          }
          const bool last = kEnd == kSteps && piece + 1 == kPieces;
          if (last) {
            ring.advance(kTurns);
            if constexpr (kInt4) {
              if (more) wait(), expand_stage(expanded ^ 1);
            } else if (more) {
              here = barrier_test(full + 8 * ring.full(), ring.full_parity());
            }
          }
          wgmma_wait<0>();
          settle(part);
          if (last) free(slot);

          if constexpr (kXIsLeft) {
            const float upper = x[0].x * scale[0], lower = x[0].y * scale[0];
#pragma unroll
            for (int i = 0; i < kPart; ++i)
              sums[piece * kPart + i] = fmaf(static_cast<float>(part[i]), i % 4 < 2 ? upper : lower, sums[piece * kPart + i]);
          } else {
#pragma unroll
            for (int i = 0; i < kPart; ++i) {
              [[maybe_unused]] const float of_x = i % 2 == 0 ? x[i / 4].x : x[i / 4].y;
              const float value = static_cast<float>(part[i]);
              [[maybe_unused]] const int half = i % 4 / 2;
              if constexpr (kInt4)
                sums[i] = fmaf(value, scale[half], sums[i]);
              else if constexpr (kBy == ScaledBy::tile)
                sums[i] = fmaf(value, of_x * scale[0], sums[i]);
              else
                sums[i] = fmaf(value * scale[half], of_x, sums[i]);
            }
          }
        };
        // What the tensor cores add up by themselves: a chunk, or half of it where results are fp16 and operands float8.
        constexpr bool kExact = kType == Element::int8 || std::is_same_v<Output, __nv_bfloat16>;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if constexpr (kSub == 4) {
            chunk.template operator()<0, 1>(piece), chunk.template operator()<1, 2>(piece);
            chunk.template operator()<2, 3>(piece), chunk.template operator()<3, 4>(piece);
          } else if constexpr (kExact) {
            chunk.template operator()<0, kSteps>(piece);
          } else {
            chunk.template operator()<0, kSteps / 2>(piece), chunk.template operator()<kSteps / 2, kSteps>(piece);
          }
        }
        expanded ^= 1;
        if (!here) wait();
      }
      next -= work.k_tiles;
      scales.store(channels, row_scales, thread);
      sync_threads_of(kGroupBarrier + me.group, 128);

      const RowwiseEpilogue<float, Output> epilogue = {static_cast<Output*>(r.p.y),
                                                       int(r.p.M),
                                                       int(r.p.N),
                                                       false,
                                                       tile,
                                                       tile.group_n > 0 ? shared + L::kChannels : channels,
                                                       row_scales};
      if constexpr (kXIsLeft) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          Thread in_piece = me;
          in_piece.warp_row = first_m + piece * 64 + warp % 4 * 16;
          write_x_left_tile<kColumns>(*reinterpret_cast<const float (*)[kPart]>(sums + piece * kPart), in_piece, epilogue, tile);
        }
      } else {
        finish_tile<L>(sums, me, epilogue, tile, work.k_tiles < s.k_tiles, shared);
      }
    });
    if (kTakesTurns && me.group == 0) sync_threads_of(kTurnBarrier, kPair);  // the other's last arrival
  }
}

}  // namespace aoext::cuda::wgmma
