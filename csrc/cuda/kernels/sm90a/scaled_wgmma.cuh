// 8-bit products with a scale a block on Hopper (scaled.h): x of e4m3 or int8 by w of the same, or of int4.
//
// It walks memory as rowwise_wgmma.cuh does: y comes transposed, a block takes 128 or 64 rows of w by kTokens rows of x in stages
// of 128 k, two warpgroups multiply and one copies. What differs is what a stage's product becomes: the engine starts anew for
// each block of k, and its sums go to float32 in other registers, multiplied by the scales of that block. Those lie in the ring
// beside the stage: a warp of the copying warpgroup brings them by cp.async, whose end the stage's barrier counts. Of one scale
// for 64 rows of w, as blocks of 128 by 128 have, the threads that multiply read it from memory themselves, a stage ahead.
//
// int4 becomes 8 bits in registers, which hold the left operand: 16 q of int8, so that a byte needs no sign to be extended, and q
// of e4m3, whose subnormal numbers count in steps of 2^-9. The zero point of a group multiplies the sums of x over the
// group's chunks, which a kernel before this one has found (chunk_sums).
//
// With 128 tokens a stage is 512 cycles of the matrix engine, and 16384 sums to be scaled, two operations each: 256 cycles in
// which the other warpgroup multiplies. Blocks of 32 have four times as many.
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
  const float* x_values;     // [M, x_groups]: scales of x or, of int4, sums of x over chunks
  int64_t scale_n, scale_k;
  int block_n, x_groups, w_groups;
  int x_chunks, w_chunks;    // chunks of k that share a value
  Element scale_type;
};

// kSub: chunks of a stage, which have scales of their own.
template <ScaledBy kBy, class Output, int kTileRows, int kTokens, int kStages, int kSub>
struct ScaledLayout {
  static constexpr bool kInt4 = kBy == ScaledBy::group;
  static constexpr int kTurns = kTileRows == kRows / 2 ? 2 : 1;  // that warpgroups take with stages
  static_assert(kStages % kTurns == 0);
  static constexpr int kTokensOfGroup = kTokens, kChannelsOfGroup = 64;
  static constexpr bool kTurned = false;
  static constexpr int kMine = kTokens * kTileRows / kRows;  // tokens of a warpgroup as the tile leaves
  static constexpr int kWLine = kInt4 ? kLine / 2 : kLine;
  static constexpr int kWBytes = kTileRows * kWLine, kXBytes = kTokens * kLine;
  static constexpr int kStage = kWBytes + kXBytes;  // w, then x
  static constexpr int kXValues = kSub * kTokens * 4;  // bytes: [kSub][kTokens]
  // Of rows [kSub][kTileRows] float32, or 4 exponents for each; of groups scales, then zeros, of 2 or 4 bytes.
  static constexpr int kWValues = kBy == ScaledBy::tile ? 0 : kSub * kTileRows * 4 * (kInt4 ? 2 : 1);
  static constexpr int kValues = kStages * kStage;  // of each stage x's, then w's
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
  static constexpr int kCopyRegisters = kBy == ScaledBy::tile ? 40 : 56, kMultiplyRegisters = kBy == ScaledBy::tile ? 232 : 224;
  using Shares = ClusterShares<Output, kMine, 2>;
  static_assert(kStages == 0 || Shares::bytes(kPair) <= kStaging);
};

// The barrier counts one of this thread's arrivals when all copies that it has asked for are there.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- int4 to 8 bits ----

// Nibbles k, k + 1, k + 2, k + 3 of each half of a word, as bytes: 16 q of int8, q · 2^-9 of e4m3.
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

// The left operand of a stage's steps: rows g and g + 8 of the warp's 16, bytes 2t, 2t + 1 and 8 + 2t, 9 + 2t of each step's 16.
template <Element kType>
__device__ inline void load_nibbles(uint32_t (&f)[kSteps][4], uint32_t lines, int row, int quad) {
  const uint32_t upper = lines + row * (kLine / 2) + 2 * quad, swizzle = (row >> 1 & 3) << 4;  // row + 8 has the same
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t at = upper + (step << 4 ^ swizzle);
    const uint32_t first = load_shared_half(at) | load_shared_half(at + 8) << 16;
    const uint32_t second = load_shared_half(at + 4 * kLine) | load_shared_half(at + 4 * kLine + 8) << 16;
    unpack_nibbles<kType>(first, f[step][0], f[step][2]);
    unpack_nibbles<kType>(second, f[step][1], f[step][3]);
  }
}

// ---- The kernel ----

// One warp: what a stage's blocks of k have of x and of w, into the ring beside it.
template <ScaledBy kBy, class L, int kTileRows, int kTokens, int kStages, int kSub>
__device__ inline void copy_values(const ScaledArguments& a, const Rest& rest, uint32_t shared, uint32_t full, uint32_t empty,
                                   int lane) {
  const RowwiseLinear& p = a.rowwise.p;
  Ring<kStages> ring;
  each_segment<false>(a.rowwise.segments, rest, [&](const Segment& segment) {
    const Tile tile = tile_of(a.rowwise.tiles, segment.tile, kTokens, kTileRows);
    const int tokens = min(kTokens, int(p.M) - tile.token);
#pragma unroll 1
    for (int stage = segment.first_stage; stage < segment.first_stage + segment.stages; ++stage) {
      const uint32_t to = shared + L::kValues + ring.slot() * L::kStageValues;
      barrier_wait(empty + 8 * ring.slot(), ring.empty_parity() ^ 1);
#pragma unroll
      for (int sub = 0; sub < kSub; ++sub) {
        const int chunk = stage * kSub + sub;
        const float* const from = a.x_values + min(chunk / a.x_chunks, a.x_groups - 1) + int64_t(tile.token) * a.x_groups;
#pragma unroll 4
        for (int t = lane; t < tokens; t += 32) copy<4>(to + (sub * kTokens + t) * 4, from + int64_t(t) * a.x_groups, true);
        if constexpr (kBy != ScaledBy::tile) {
          const int column = min(chunk / a.w_chunks, a.w_groups - 1);
          if constexpr (kBy == ScaledBy::group) {
            const int bytes = a.scale_type == Element::fp32 ? 4 : 2, pieces = kTileRows * bytes / 16;
            const uint32_t scales = to + L::kXValues + sub * kTileRows * 8;
            const int64_t first = column * a.scale_k + tile.row;
            for (int i = lane; i < 2 * pieces; i += 32) {
              const int piece = i % pieces;
              const bool inside = tile.row + piece * 16 / bytes < p.N;
              const char* const values = static_cast<const char*>(i < pieces ? a.scale : a.zero);
              copy<16>(scales + (i < pieces ? 0 : kTileRows * 4) + piece * 16, values + (inside ? first * bytes + piece * 16 : 0),
                       inside);
            }
          } else if (a.scale_type == Element::e8m0) {
            if (sub == 0)
              for (int r = lane; r < kTileRows; r += 32) {
                const bool inside = tile.row + r < p.N;
                copy<4>(to + L::kXValues + r * 4,
                        static_cast<const char*>(a.scale) + (inside ? (tile.row + r) / a.block_n * a.scale_n + chunk : 0), inside);
              }
          } else {
            for (int r = lane; r < kTileRows; r += 32) {
              const bool inside = tile.row + r < p.N;
              copy<4>(to + L::kXValues + (sub * kTileRows + r) * 4,
                      static_cast<const float*>(a.scale) + (inside ? (tile.row + r) / a.block_n * a.scale_n + column : 0), inside);
            }
          }
        }
      }
      arrive_after_copies(full + 8 * ring.full());
      ring.advance();
    }
  });
}

// One thread: stages of w and x.
template <class L, int kTileRows, int kTokens, int kStages, bool kW, bool kX>
__device__ inline void copy_scaled_stages(const RowwiseArguments& a, const Rest& rest, uint32_t shared, uint32_t full,
                                          uint32_t empty, const CUtensorMap& x_map, const CUtensorMap& w_map) {
  Ring<kStages> ring;
  each_segment<false>(a.segments, rest, [&](const Segment& segment) {
    const Tile tile = tile_of(a.tiles, segment.tile, kTokens, kTileRows);
    const int tokens = copied_tokens(a.p.M, tile, kTokens, a.copy_tokens);
#pragma unroll 1
    for (int stage = segment.first_stage; stage < segment.first_stage + segment.stages; ++stage) {
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
  constexpr bool kHigh = L::kTurns == 1, kInt4 = kBy == ScaledBy::group;
  constexpr int kMine = L::kMine, kTurns = L::kTurns;
  using Sum = WgmmaSum<kType>;
  const RowwiseArguments& r = a.rowwise;
  const Segments& s = r.segments;
  extern __shared__ char unaligned[];
  __shared__ Rest rest;
  const uint32_t shared = (shared_address(unaligned) + 1023) & ~1023u;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * kStages;
  const int warp = warp_index(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1 + 32);
      barrier_init(empty + 8 * i, kPairWarps / kTurns * kArrivals);
    }
    if (s.cluster > 1) init_cluster_barriers(shared + L::kClusterBarriers, s.cluster);
    barrier_init_fence();
    rest.find(s);
  }
  __syncthreads();
  if (s.cluster > 1) cluster_arrive_initialised();

  if (warp >= kPairWarps) {
    release_registers<L::kCopyRegisters>();
    const auto copy = [&](auto of_w, auto of_x) {
      copy_scaled_stages<L, kTileRows, kTokens, kStages, of_w, of_x>(r, rest, shared, full, empty, x_map, w_map);
    };
    constexpr auto kYes = std::true_type();
    if (threadIdx.x == kPair) {
      prefetch_map(&x_map), prefetch_map(&w_map);
      const Segment first = first_segment(s, rest);
      const int row = tile_of(r.tiles, first.tile, kTokens, kTileRows).row;
      for (int i = 0; i < min(first.stages, kEarly); ++i) prefetch_tile(&w_map, (first.first_stage + i) * L::kWLine, row);
      wait_for_last_kernel(), start_next_kernel();
      copy(kYes, std::bool_constant<kHigh>());
    } else if (!kHigh && threadIdx.x == kPair + 32) {
      wait_for_last_kernel();
      copy(std::false_type(), kYes);
    } else if (warp == kPairWarps + 2) {
      wait_for_last_kernel();
      copy_values<kBy, L, kTileRows, kTokens, kStages, kSub>(a, rest, shared, full, empty, lane);
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
    const int first_row = kHigh ? me.group * 64 : 0, row = first_row + warp % 4 * 16 + lane / 4;  // in the tile
    const uint32_t channels = shared + L::kChannels + me.group * L::kChannelsOfGroup * int(sizeof(Channel)),
                   row_scales = shared + L::kRowScales + me.group * L::kTokensOfGroup * int(sizeof(float));
    Ring<kStages> ring(kHigh ? 0 : me.group);
    int next = kHigh ? 0 : me.group;  // of this warpgroup's stages, counted from a segment's first on
    float sums[kTokens / 2];

    const auto wait = [&] { barrier_wait(full + 8 * ring.full(), ring.full_parity()); };
    const auto free = [&](int slot) {
      __syncwarp();
      if (arrives(lane)) barrier_arrive(empty + 8 * slot);
    };
    const auto left = [&] { return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + first_row * kLine)); };
    const auto right = [&](int column) {
      return matrix_of_lines(lines_descriptor(shared + ring.slot() * L::kStage + L::kWBytes + column * kLine));
    };
    // Of a chunk in a slot: x's value of a token and the next, w's scale and zero of this thread's two rows.
    const auto x_pair = [&](int slot, int sub, int token) {
      return load_shared_pair(shared + L::kValues + slot * L::kStageValues + (sub * kTokens + token) * 4);
    };
    const auto w_value = [&](int slot, int sub, int which, int r) {
      const uint32_t values = shared + L::kValues + slot * L::kStageValues + L::kXValues;
      if constexpr (kInt4) {
        const uint32_t from = values + (2 * sub + which) * kTileRows * 4;
        if (a.scale_type == Element::fp32) return load_shared(from + r * 4);
        const uint32_t half = load_shared_half(from + r * 2);
        return a.scale_type == Element::bf16 ? __uint_as_float(half << 16)
                                             : __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
      } else {
        if (a.scale_type == Element::e8m0) return power_of_exponent(load_shared_byte(values + r * 4 + sub));
        return load_shared(values + (sub * kTileRows + r) * 4);
      }
    };

    each_segment<false>(s, rest, [&](const Segment& segment) {
      Tile tile = tile_of(r.tiles, segment.tile, kTokens, kTileRows);
      tile.end = tile.row + kTileRows;
      if constexpr (!kHigh) tile.group_rows = 0, tile.group_tokens = kTokens / 2;
      Scales<L> scales;
      scales.load(r.p, tile, me.group, thread);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;

      // Of a scale for all 64 rows: its place in memory.
      const int64_t scale_row = (tile.row + first_row < r.p.N ? tile.row + first_row : tile.row) / a.block_n * a.scale_n;
      const auto tile_scale = [&](int stage) {
        return load_scale(a.scale, scale_row + min((segment.first_stage + stage) / a.w_chunks, a.w_groups - 1), a.scale_type);
      };
      float ahead = 0;
      if constexpr (kBy == ScaledBy::tile) ahead = next < segment.stages ? tile_scale(next) : 0;

      constexpr int kPieces = kTokens <= 128 ? 1 : 2;  // of a stage's columns, that registers are for
      constexpr int kPart = kTokens / 2 / kPieces;
      uint32_t fragments[kInt4 ? kSteps : 1][4];
      const auto load_fragments = [&](uint32_t (&f)[kInt4 ? kSteps : 1][4]) {
        if constexpr (kInt4) load_nibbles<kType>(f, shared + ring.slot() * L::kStage, row, me.quad);
      };
      if (next < segment.stages) {
        wait();
        load_fragments(fragments);
      }
#pragma unroll 1
      for (; next < segment.stages; next += kTurns) {
        const bool more = next + kTurns < segment.stages;
        const int slot = ring.slot();
        bool here = true;
        const float shared_scale = ahead;
        if constexpr (kBy == ScaledBy::tile) ahead = more ? tile_scale(next + kTurns) : 0;
        uint32_t next_fragments[kInt4 ? kSteps : 1][4];
        Sum part[kPart];
        // Adds what the engine has of a chunk, and the zero points' part with the first of it.
        const auto promote = [&](int sub, int piece, bool begins) {
          float scale[2], zero[2] = {};
          if constexpr (kBy == ScaledBy::tile) {
            scale[0] = scale[1] = shared_scale;
          } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              scale[i] = w_value(slot, sub, 0, row + 8 * i);
              if constexpr (kInt4) scale[i] *= kCodeStep<kType>, zero[i] = begins ? w_value(slot, sub, 1, row + 8 * i) : 0;
            }
          }
#pragma unroll
          for (int i = 0; i < kPart / 4; ++i) {
            const float2 x = x_pair(slot, sub, piece * 2 * kPart + 8 * i + 2 * me.quad);
            float* const to = sums + piece * kPart + 4 * i;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float of_x = j % 2 == 0 ? x.x : x.y, value = static_cast<float>(part[4 * i + j]);
              if constexpr (kInt4)
                to[j] = fmaf(value, scale[j / 2], begins ? fmaf(of_x, zero[j / 2], to[j]) : to[j]);
              else if constexpr (kBy == ScaledBy::tile)
                to[j] = fmaf(value, of_x * scale[0], to[j]);
              else
                to[j] = fmaf(value * scale[j / 2], of_x, to[j]);
            }
          }
        };
        // Multiplies steps of a chunk; the last of a stage asks for the next one meanwhile.
        const auto chunk = [&]<int kFirst, int kEnd>(int piece) {
          if constexpr (kInt4) {
            wgmma_fence();
#pragma unroll
            for (int step = kFirst; step < kEnd; ++step)
              Wgmma<2 * kPart>::multiply(std::integral_constant<Element, kType>(), part, fragments[step],
                                         right(piece * 2 * kPart) + 2 * step, step > kFirst);
            wgmma_commit();
          } else {
            multiply<kType, kFirst, kEnd>(part, left(), right(piece * 2 * kPart), false);
          }
          const bool last = kEnd == kSteps && piece + 1 == kPieces;
          if (last) {
            ring.advance(kTurns);
            if constexpr (kInt4) {
              if (more) wait(), load_fragments(next_fragments);
            } else if (more) {
              here = barrier_test(full + 8 * ring.full(), ring.full_parity());
            }
          }
          wgmma_wait<0>();
          settle(part);
          promote(kSub == 1 ? 0 : kFirst * kSub / kSteps, piece, kSub > 1 || kFirst == 0);
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
        free(slot);
        if constexpr (kInt4) {
#pragma unroll
          for (int i = 0; i < kSteps * 4; ++i) fragments[i / 4][i % 4] = next_fragments[i / 4][i % 4];
        }
        if (!here) wait();
      }
      next -= segment.stages;
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
        if (segment.stages < s.stages) chunks = meet_cluster<2, Output, kMine>(mine, kPair, shared + L::kClusterBarriers, shared);
        write_tile<kMine>(mine, me, epilogue, tile, shared + L::kStaging, chunks);
      };
      if constexpr (kHigh) {
        finish(sums);
      } else {
        float mine[kMine / 2];
        share_out<typename L::Shared>(sums, mine, me.group, shared + L::kStaging);
        finish(mine);
      }
    });
  }
}

}  // namespace aoext::cuda::wgmma
