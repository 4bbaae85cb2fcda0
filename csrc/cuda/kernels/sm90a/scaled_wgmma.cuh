// 8-bit products with a scale a block on Hopper (scaled.h): x of e4m3 or int8 by w of the same, or of int4.
//
// It walks memory as rowwise_wgmma.cuh does: y comes transposed, a block takes 128 or 64 rows of w by kTokens rows of x in stages
// of 128 k, two warpgroups multiply and one copies. What differs is what a stage's product becomes: the engine starts anew for
// each block of k, and its sums go to float32 in other registers, multiplied by the scales of that block. Those lie in the ring
// beside the stage: two warps of the copying warpgroup bring them by cp.async, whose end the stage's barrier counts. Where they
// lie is found once a tile: with addresses and divisions in every stage these two warps took longer than all others.
//
// int4 becomes 8 bits in shared memory, a stage ahead of the engine, by the warpgroup that multiplies it: 16 q of int8, so that a
// byte needs no sign to be extended, and q of e4m3, whose subnormal numbers count in steps of 2^-9. Zero points multiply sums of
// x over chunks of k, which a kernel before this one has found: a small product of its own, by which a tile begins.
//
// Of one scale for all rows of w in a tile, as blocks of 128 by 128 have, and many tokens x is the left operand, so that a thread
// has two factors a stage, and y does not come transposed. Scales of x then lie by chunks of k, or two warps would read a line
// for each of them. For 128 rows by 256 tokens a stage is 1024 cycles of the matrix engine, and each thread's 128 sums take an
// operation each. Otherwise a thread has many tokens, whose values it reads while the engine works, and two operations a sum: of
// 128 by 128 rows 256 cycles of all against 512. Blocks of 32 have four times as many. While one warpgroup adds, the other
// multiplies, in turns.
#pragma once

#include "cuda/kernels/scaled.cuh"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"

namespace aoext::cuda::wgmma {

// Of w: 8 bits with a scale for 64 rows or more by 128 k or more; 8 bits with a scale for each row; int4.
enum class ScaledBy { tile, row, group };

struct ScaledArguments {
  RowwiseArguments rowwise;  // of int4 its row scales are those of x
  const void* scale;         // as in ScaledLinear
  const void* zero;
  // Scales of x, [M, x_groups]. Where x is the left operand, by chunks, [x_chunks, x_groups], so that tokens are side by side. Of
  // int4 sums of x over chunks, x_groups tokens of each 16 of them (place_of_sum).
  const float* x_values;
  int64_t scale_n, scale_k;
  int block_n, x_groups, w_groups;
  int x_chunks, w_chunks;  // chunks of k that share a value; x's by chunks as above
  int x_chunk;             // stages that share one of these
  Element scale_type;
};

// Whether x is the left operand. A thread then has sums of two tokens and many rows of w for each 64 tokens of a warpgroup, and
// with one scale for all those rows two factors a stage.
constexpr bool is_x_left(ScaledBy by, int tokens) { return by == ScaledBy::tile && tokens >= kRows; }

// kSub: chunks of a stage, which have scales of their own.
template <ScaledBy kBy, class Output, int kTileRows, int kTokens, int kStages, int kSub>
struct ScaledLayout {
  static constexpr bool kInt4 = kBy == ScaledBy::group;
  static constexpr bool kXIsLeft = is_x_left(kBy, kTokens), kByChunks = kXIsLeft || kInt4;  // x's values come by chunks
  static constexpr int kTurns = !kXIsLeft && kTileRows == kRows / 2 ? 2 : 1;                // that warpgroups take with stages
  static_assert(kStages % kTurns == 0);
  static constexpr int kTokensOfGroup = kTokens, kChannelsOfGroup = kXIsLeft ? kTileRows : 64;
  static constexpr bool kTurned = false;                                    // each warpgroup has row scales of all tokens
  static constexpr int kMine = kXIsLeft ? 0 : kTokens * kTileRows / kRows;  // tokens of a warpgroup as the tile leaves
  static constexpr int kWLine = kInt4 ? kLine / 2 : kLine;
  static constexpr int kWBytes = kTileRows * kWLine, kXBytes = kTokens * kLine;
  static constexpr int kStage = kWBytes + kXBytes;                 // w, then x
  static constexpr int kXValues = kInt4 ? 0 : kSub * kTokens * 4;  // bytes: [kSub][kTokens]
  // Of a tile one, if it is a float32; of rows [kSub][kTileRows] float32, or 4 exponents for each; of groups
  // [kSub][kTileRows] of 2 or 4 bytes.
  static constexpr int kWValues = kBy == ScaledBy::tile ? 16 : kSub * kTileRows * 4;
  // Where int4 becomes 8 bits: of each warpgroup two stages' 64 rows in turns.
  static constexpr int kExpanded = kStages * kStage, kExpandedBytes = kInt4 ? 64 * kLine : 0;
  static constexpr int kValues = kExpanded + 4 * kExpandedBytes;  // of each stage x's, then w's
  static constexpr int kStageValues = kXValues + kWValues;
  static constexpr int kStaging = kValues + kStages * kStageValues;
  using S = Staging<Output, kMine>;
  using Shared = Sharing<kTokens, 4>;
  static constexpr int kStagingBytes = std::max(2 * S::kBuffers * S::kBufferBytes, kTurns == 2 ? Shared::kBytes : 0);
  static constexpr int kChannels = kStaging + kStagingBytes;
  static constexpr int kRowScales = kChannels + 2 * kChannelsOfGroup * int(sizeof(Channel));
  static constexpr int kBarriers = kRowScales + 2 * kTokensOfGroup * int(sizeof(float));
  static constexpr int kClusterBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kBytes = kClusterBarriers + kClusterBarrierBytes + 1024;
  // Of a thread that copies, which has more addresses to count where w has values in the ring, and of one that multiplies.
  static constexpr int kCopyRegisters = kBy == ScaledBy::group ? 56 : 40, kMultiplyRegisters = kBy == ScaledBy::group ? 224 : 232;
  using Shares = ClusterShares<Output, kXIsLeft ? 32 : kMine, 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

// The barrier counts one of this thread's arrivals when all copies that it has asked for are there.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

constexpr int kTurnBarrier = 6;  // of threads, one for each of two warpgroups

__device__ inline void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- int4 to 8 bits ----

// The nibbles of each half of a word, as bytes: 16 q of int8, q · 2^-9 of e4m3.
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

// What takes back the steps in which codes count.
template <Element kType>
constexpr float kCodeStep = kType == Element::int8 ? 0x1p-4f : 0x1p9f;

// 64 rows of a stage, of 64 bytes as the copy engine swizzled them, to lines of 128: a thread has half a row.
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

// Sums of x over chunks as add_zeros reads them: of 16 chunks and a token four lanes have 16 bytes each, the lane t that of
// chunks 2t, 2t + 1, 2t + 8 and 2t + 9, first their bf16 and then what these leave over. The place of a chunk's, in bf16.
constexpr int kSumsOfBlock = 16;  // chunks
__host__ __device__ constexpr int64_t place_of_sum(int chunk, int64_t token, int64_t pitch, bool rest) {
  const int in_block = chunk % kSumsOfBlock;
  return ((chunk / kSumsOfBlock * pitch + token) * 4 + in_block % 8 / 2) * 8 + (rest * 2 + in_block / 8) * 2 + in_block % 2;
}

// sums += zero[n, c] · sum of x[m, k] over chunk c, of chunks [first, end), by mma.sync, whose sums lie as those of the engine
// do. Both factors are two bf16 each.
template <int kTokens>
__device__ inline void add_zeros(float (&sums)[kTokens / 2], const ScaledArguments& a, int first, int end, int n, int token,
                                 int lane) {
  const RowwiseLinear& p = a.rowwise.p;
  const int quad = lane % 4, own = token + lane / 4;
#pragma unroll 1
  for (int block = first / kSumsOfBlock; block * kSumsOfBlock < end; ++block) {
    uint4 x[kTokens / 8];
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j)
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
    for (int j = 0; j < kTokens / 8; ++j) {
      auto& d = *reinterpret_cast<float (*)[4]>(sums + 4 * j);
      mma<__nv_bfloat16>(d, high, x[j].x, x[j].y);
      mma<__nv_bfloat16>(d, high, x[j].z, x[j].w);
      if (a.scale_type != Element::bf16) mma<__nv_bfloat16>(d, low, x[j].x, x[j].y);
    }
  }
}

// ---- The kernel ----

constexpr int kValueThreads = 64;  // that bring what stands beside a stage

// What a stage's blocks of k have of x and of w, into the ring beside it. Where values lie is found once a tile, so that a stage
// costs a thread little more than its copies.
template <ScaledBy kBy, class L, int kTileRows, int kTokens, int kStages, int kSub>
__device__ inline void copy_values(const ScaledArguments& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                   uint32_t empty, int thread) {
  const RowwiseLinear& p = a.rowwise.p;
  constexpr int kOfX = (kTokens + kValueThreads - 1) / kValueThreads, kOfW = kTileRows / kValueThreads;
  const auto column = [](int chunk, int chunks, int groups) { return min(chunks == 1 ? chunk : chunk / chunks, groups - 1); };
  Ring<kStages> ring;
  for_each_work<false>(a.rowwise.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(a.rowwise.tiles, work.tile, kTokens, kTileRows);
    const int tokens = min(kTokens, int(p.M) - tile.token), rows = min(kTileRows, int(p.N) - tile.row);
    [[maybe_unused]] const float* of_x[kOfX];
    if constexpr (!L::kByChunks) {
#pragma unroll
      for (int i = 0; i < kOfX; ++i) {
        const int t = thread + i * kValueThreads;
        of_x[i] = a.x_values + int64_t(tile.token + (t < tokens ? t : 0)) * a.x_groups;
      }
    }
    [[maybe_unused]] const float* const of_tile = static_cast<const float*>(a.scale) + int64_t(tile.row / a.block_n) * a.scale_n;
    [[maybe_unused]] const char* of_w[kOfW];
    if constexpr (kBy == ScaledBy::row) {
#pragma unroll
      for (int i = 0; i < kOfW; ++i) {
        const int r = thread + i * kValueThreads;
        const int64_t first = (tile.row + (r < rows ? r : 0)) / a.block_n * a.scale_n;
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
          const int64_t first = column(stage * kSub + sub, a.w_chunks, a.w_groups) * a.scale_k + tile.row;
          if (thread * 16 < rows * bytes)
            copy<16>(to_w + sub * kTileRows * 4 + thread * 16, static_cast<const char*>(a.scale) + first * bytes + thread * 16,
                     true);
        }
      } else if constexpr (L::kByChunks) {
        const int at = a.x_chunk == 1 ? stage : stage / a.x_chunk;
        if (thread * 4 < tokens)
          copy<16>(to + thread * 16, a.x_values + int64_t(min(at, a.x_chunks - 1)) * a.x_groups + tile.token + thread * 4, true);
      } else {
#pragma unroll
        for (int sub = 0; sub < kSub; ++sub) {
          const int at = column(stage * kSub + sub, a.x_chunks, a.x_groups);
#pragma unroll
          for (int i = 0; i < kOfX; ++i) {
            const int t = thread + i * kValueThreads;
            if (t < tokens) copy<4>(to + (sub * kTokens + t) * 4, of_x[i] + at, true);
          }
        }
        if constexpr (kBy == ScaledBy::row) {
          const bool exponents = a.scale_type == Element::e8m0;  // four to a word
#pragma unroll 1
          for (int sub = 0; sub < (exponents ? 1 : kSub); ++sub) {
            const int at = exponents ? stage * kSub : 4 * column(stage * kSub + sub, a.w_chunks, a.w_groups);
#pragma unroll
            for (int i = 0; i < kOfW; ++i) {
              const int r = thread + i * kValueThreads;
              if (r < rows) copy<4>(to_w + (sub * kTileRows + r) * 4, of_w[i] + at, true);
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

// One thread: stages of w and x.
template <class L, int kTileRows, int kTokens, int kStages, bool kW, bool kX>
__device__ inline void copy_scaled_stages(const RowwiseArguments& a, const BlockWork& block_work, uint32_t shared, uint32_t full,
                                          uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  for_each_work<false>(a.schedule, block_work, [&](const WorkTile& work) {
    const Tile tile = tile_of(a.tiles, work.tile, kTokens, kTileRows);
    const int tokens = copied_tokens(a.p.M, tile, kTokens, a.copy_tokens);
#pragma unroll 1
    for (int stage = work.first_k_tile; stage < work.first_k_tile + work.k_tiles; ++stage) {
      const uint32_t arrived = full + 8 * ring.full(), to = shared + ring.slot() * L::kStage;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
      if (kW) {
        barrier_expect(arrived, L::kWBytes + tokens * kLine);
        copy_tile(to, &w_map, arrived, stage * L::kWLine, tile.row, a.w_policy);
      }
#pragma unroll 1
      for (int token = 0; kX && token < tokens; token += a.copy_tokens)
        copy_tile(to + L::kWBytes + token * kLine, &x_map, arrived, stage * kLine, tile.token + token);
      ring.advance();
    }
  });
}

template <ScaledBy kBy, Element kType, class Output, int kTileRows, int kTokens, int kStages, int kSub>
__global__ void __launch_bounds__(kRowwiseThreads, 1)
    scaled_wgmma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ ScaledArguments a) {
  using L = ScaledLayout<kBy, Output, kTileRows, kTokens, kStages, kSub>;
  constexpr bool kInt4 = kBy == ScaledBy::group, kXIsLeft = L::kXIsLeft;
  constexpr bool kHigh = L::kTurns == 1;  // both warpgroups multiply every stage
  constexpr int kMine = L::kMine, kTurns = L::kTurns;
  constexpr int kColumns = kXIsLeft ? kTileRows : kTokens;  // of the instruction
  constexpr int kPieces = kXIsLeft ? kTokens / kRows : 1;   // of 64 tokens each, that a warpgroup multiplies one after the other
  constexpr int kPart = kColumns / 2;
  using Sum = WgmmaSum<kType>;
  const RowwiseArguments& r = a.rowwise;
  const TileScheduler& s = r.schedule;
  extern __shared__ char unaligned[];
  __shared__ BlockWork block_work;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1 + kValueThreads);
      barrier_init(empty + 8 * i, kPairWarps / kTurns * kArrivals);
    }
    if (s.cluster > 1) init_cluster_barriers(shared + L::kClusterBarriers, s.cluster);
    barrier_init_fence();
    block_work.find(s);
  }
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<L::kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_scaled_stages<L, kTileRows, kTokens, kStages, of_w, of_x>(r, block_work, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const WorkTile first = first_work(s, block_work);
      const int row = tile_of(r.tiles, first.tile, kTokens, kTileRows).row;
      for (int i = 0; i < min(first.k_tiles, kEarly); ++i) prefetch_tile(&w_map, (first.first_k_tile + i) * L::kWLine, row);
      wait_for_last_kernel(), start_next_kernel();
      copy(kYes, std::bool_constant<kHigh>());
    } else if (!kHigh && threadIdx.x == kPair + 32) {
      wait_for_last_kernel();
      copy(std::false_type(), kYes);
    } else if (warp >= kPairWarps + 2) {
      wait_for_last_kernel();
      copy_values<kBy, L, kTileRows, kTokens, kStages, kSub>(a, block_work, shared, full, empty, threadIdx.x - kPair - 64);
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
    const int first_token = kXIsLeft ? me.group * (kTokens / 2) : 0;
    const uint32_t channels = shared + L::kChannels + me.group * L::kChannelsOfGroup * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kTokensOfGroup * int(sizeof(float));
    // Where both multiply every stage, they take turns with the engine, or both would wait for it and then add at once. One's
    // turn ends as the last of its products begins.
    constexpr bool kTakesTurns = kHigh && kSub == 1;
    if (kTakesTurns && me.group == 1) arrive_at(kTurnBarrier, kPair);
    Ring<kStages> ring(kHigh ? 0 : me.group);
    int next = kHigh ? 0 : me.group;  // of this warpgroup's stages, counted from the first of a work tile on
    float sums[kPieces * kPart];

    const auto wait = [&] { barrier_wait(full + 8 * ring.full(), ring.full_parity()); };
    const auto free = [&](int slot) {
      __syncwarp();
      if (arrives(lane)) barrier_arrive(empty + 8 * slot);
    };
    int expanded = 0;  // of the two stages' places, that of the present one
    const auto place = [&](int which) { return shared + L::kExpanded + (2 * me.group + which) * L::kExpandedBytes; };
    const auto of_w = [&] {
      return matrix_of_lines(lines_descriptor(kInt4 ? place(expanded) : shared + ring.slot() * L::kStage + first_row * kLine));
    };
    const auto of_x = [&](int piece) {
      return matrix_of_lines(
          lines_descriptor(shared + ring.slot() * L::kStage + L::kWBytes + (first_token + piece * 64) * kLine));
    };
    // Of a chunk in a slot: where x's values begin; w's scales.
    const auto x_values = [&](int slot, int sub) { return shared + L::kValues + slot * L::kStageValues + sub * kTokens * 4; };
    const bool wide = a.scale_type == Element::fp32;
    const auto w_values = [&](int slot, int sub, float (&v)[2]) {  // of this thread's two rows
      const uint32_t values = shared + L::kValues + slot * L::kStageValues + L::kXValues;
      if constexpr (kInt4) {
        const uint32_t from = values + sub * kTileRows * 4;
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
        const uint32_t words[2] = {load_shared_word(values + (wide ? sub * kTileRows * 4 : 0) + row * 4),
                                   load_shared_word(values + (wide ? sub * kTileRows * 4 : 0) + row * 4 + 32)};
#pragma unroll
        for (int i = 0; i < 2; ++i) v[i] = wide ? __uint_as_float(words[i]) : power_of_exponent(words[i] >> 8 * sub & 0xff);
      }
    };

    for_each_work<false>(s, block_work, [&](const WorkTile& work) {
      Tile tile = tile_of(r.tiles, work.tile, kTokens, kTileRows);
      tile.end = tile.row + kTileRows;
      if constexpr (!kHigh) tile.group_rows = 0, tile.group_tokens = kTokens / 2;
      if constexpr (kXIsLeft) tile.group_rows = 0;
      Scales<L> scales;
      scales.load(r.p, tile, me.group, thread);
#pragma unroll
      for (int i = 0; i < kPieces * kPart; ++i) sums[i] = 0;

      if constexpr (kInt4)
        if (kHigh || me.group == 0)
          add_zeros<kTokens>(sums, a, work.first_k_tile * kSub, min((work.first_k_tile + work.k_tiles) * kSub, a.x_chunks),
                             tile.row + row, tile.token, lane);

      // Of a scale for all rows that the ring does not bring.
      const int64_t scale_row = tile.row / a.block_n * a.scale_n;
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
        // Multiplies steps of a chunk, and adds what the engine has of it. All that lies in shared memory is read while it works;
        // with the last of a stage the next one is asked for.
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
            if constexpr (kInt4 && kFirst == 0) sync_threads_of(kGroupBarrier + me.group, 128);  // what the others have expanded
            issue.template operator()<kFirst, kEnd>();
          }

          constexpr int kPairs = kXIsLeft ? 1 : kPart / 4;
          [[maybe_unused]] float2 x[kPairs];
          [[maybe_unused]] float scale[2];
          if constexpr (kXIsLeft) {
            const uint32_t from = x_values(slot, 0) + (first_token + piece * 64 + lane_row) * 4;
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
        // Left to the engine's sums: a chunk, or half of it where results are fp16 and sums of float8.
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
                                                       tile.group_rows > 0 ? shared + L::kChannels : channels,
                                                       row_scales};
      const auto finish = [&](auto& mine) {
        unsigned chunks = ~0u;  // that are complete
        if (work.k_tiles < s.k_tiles) chunks = meet_cluster<2, Output, kMine>(mine, kPair, shared + L::kClusterBarriers, shared);
        write_tile<kMine>(mine, me, epilogue, tile, shared + L::kStaging, chunks);
      };
      if constexpr (kXIsLeft) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          Thread tokens = me;
          tokens.warp_row = first_token + piece * 64 + warp % 4 * 16;
          write_turned_tile<kColumns>(*reinterpret_cast<const float (*)[kPart]>(sums + piece * kPart), tokens, epilogue, tile);
        }
      } else if constexpr (kHigh) {
        finish(sums);
      } else {
        float mine[kMine / 2];
        share_out<typename L::Shared>(sums, mine, me.group, shared + L::kStaging);
        finish(mine);
      }
    });
    if (kTakesTurns && me.group == 0) sync_threads_of(kTurnBarrier, kPair);  // what the other has left
  }
}

}  // namespace aoext::cuda::wgmma
