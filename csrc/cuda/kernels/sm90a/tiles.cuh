// Tiles of y as Hopper's matrix engine leaves them: rows of w are rows of the instruction, tokens (rows of x) its columns, so
// that y comes transposed. What kernels with such tiles share: where a tile lies, rings of stages, and the way from sums to y.
//
// Sums are float, or int where x and w are int8. What makes outputs of them is a kernel's own:
//
//   struct Epilogue {
//     using Sum = ...; using Output = ...;     // Output: bf16, fp16, float or int
//     static constexpr bool kWholeVectors;     // N is a multiple of 16 bytes of outputs
//     Output* y; int M, N;
//     auto channel(int n) const;               // what the outputs of a row of w share; n may lie beyond N
//     auto token(int m) const;                 // what those of a token share; m may lie beyond M
//     auto operator()(Sum, token, channel) const;  // float, or int where y is
//   };
#pragma once

#include <algorithm>
#include <numeric>

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/tile_scheduler.cuh"

namespace aoext::cuda::wgmma {

constexpr int kRows = 128;  // of w in a tile, of which each of two warpgroups multiplies 64
constexpr int kPair = 256;  // threads of the two
constexpr int kPairWarps = kPair / 32;
// Barriers of threads: of all that multiply, as they bring their sums together; of a warpgroup, one each; of all with sums of a
// tile, as blocks meet.
constexpr int kWaysBarrier = 1, kGroupBarrier = 2, kMeetBarrier = 5;
constexpr int kLine = 128;   // bytes of a row in shared memory, as the copy engine swizzles them
constexpr int kRaster = 32;  // tiles along N that run side by side, so that L2 serves x and w

// ---- Tiles and rings ----

struct Tiles {
  int along_rows, along_tokens;
};

// Where a block works: the same for all its threads.
struct Tile {
  int row, token;  // first of w and of x
  // From the first warpgroup's 64 rows of w and its tokens to the second's: below them, or beside them.
  int group_rows = 64, group_tokens = 0;
  int end = 0x7fffffff;  // the row of w behind its last one, where it has fewer than it could
};

__device__ inline Tile tile_of(const Tiles& tiles, int index, int tokens, int rows) {
  const int area = kRaster * tiles.along_tokens;
  const int strip = index / area;
  const int in_strip = index % area;
  const int height = min(kRaster, tiles.along_rows - strip * kRaster);
  return {(strip * kRaster + in_strip % height) * rows, in_strip / height * tokens};
}

// Of a tile's, how many are copied. Copies that lie beyond M are left out, since the engine is slow to fill in what a tensor does
// not have (192 rows took longer than 256). Those rows keep what they had, and their outputs go nowhere.
__device__ inline int copied_tokens(int64_t M, const Tile& tile, int tokens, int at_once) {
  const int rows = min(tokens, int(M) - tile.token);
  return (rows + at_once - 1) / at_once * at_once;
}

// A stage in a ring, and the parities of its present round: one counter where the barriers are a power of two, since narrow tiles
// are short of registers.
//
// Of the two barriers of a stage, the one that tells that it is empty belongs to its place in memory. A parity tells a round from
// the next and the last one alone, so who waits must have seen the last round. Where warpgroups take turns with stages, and their
// number does not divide that of the stages, one comes to a place every kTurns-th round; so each of them has barriers of its own
// that tell that a place is full.
template <int kStages, int kTurns = 1>
class Ring {
 public:
  static constexpr int kFullBarriers = std::lcm(kStages, kTurns);

  __device__ explicit Ring(int first = 0) : stage_(first) {}

  __device__ int slot() const { return kFullBarriers == kStages ? full() : full() % kStages; }  // place, and its "empty"
  __device__ int round() const { return slot(); }  // the slot as a sum, of which a ring of rounds has the compiler know the step
  __device__ int step() const { return 0; }
  __device__ int full() const { return kCounts ? stage_ % kFullBarriers : stage_; }
  __device__ uint32_t full_parity() const { return kCounts ? stage_ / kFullBarriers & 1 : parity_; }
  __device__ uint32_t empty_parity() const {
    return kFullBarriers == kStages ? full_parity() : full_parity() * (kFullBarriers / kStages) + full() / kStages & 1;
  }

  __device__ void advance(int stages = 1) {
    stage_ += stages;
    if (!kCounts && stage_ >= kFullBarriers) stage_ -= kFullBarriers, parity_ ^= 1;
  }

 private:
  static constexpr bool kCounts = (kFullBarriers & (kFullBarriers - 1)) == 0;
  unsigned stage_;
  uint32_t parity_ = 0;
};

// The same where loops are over rounds of kSteps stages, unrolled: the compiler knows a stage's step in its round, so that
// addresses are sums with constants and only rounds have to be counted. Steps that are one's own are every kTurns-th.
template <int kStages, int kTurns, int kSteps>
class RingOfRounds {
 public:
  static constexpr int kFullBarriers = kStages;
  static_assert(kStages % kSteps == 0 && kSteps % kTurns == 0);

  __device__ explicit RingOfRounds(int first = 0) : round_(first) {}

  // What the compiler cannot see where a round is left and entered in the middle.
  __device__ void assume(int step) { step_ = step; }

  __device__ int slot() const { return round_ + step_; }
  __device__ int round() const { return round_; }
  __device__ int step() const { return step_; }
  __device__ int full() const { return slot(); }
  __device__ uint32_t full_parity() const { return parity_; }
  __device__ uint32_t empty_parity() const { return parity_; }

  __device__ void advance(int stages = 1) {
    step_ += stages;
    if (step_ < kSteps) return;
    step_ = 0, round_ += kSteps;
    if (round_ >= kStages) round_ -= kStages, parity_ ^= 1;
  }

 private:
  int round_, step_ = 0;
  uint32_t parity_ = 0;
};

// Describes rows of kLine bytes to wgmma, eight to a swizzled tile of 1024: its lower word, and all of it. Addresses and
// distances are in units of 16 bytes, so that further k are added to the lower word; of an address 18 bits count.
__device__ inline uint32_t lines_descriptor(uint32_t address) { return 1 << 16 | (address & 0x3ffff) >> 4; }
__device__ inline uint64_t matrix_of_lines(uint32_t descriptor) { return uint64_t(1 << 30 | 1024 >> 4) << 32 | descriptor; }

// ---- From sums to y ----

// A thread that multiplies. It holds sums of rows row, row + 8 by tokens 8 j + 2 quad, 8 j + 2 quad + 1.
struct Thread {
  int way, group;  // which pair of warpgroups, which of the two
  int lane, quad;  // quad: place among four
  int warp_row;    // first of the warp's 16 rows in the tile
  __device__ int row() const { return warp_row + lane / 4; }
};

// Bytes of a token's sums of so many rows in shared memory, padded against bank conflicts.
__host__ __device__ constexpr int sum_pitch(int rows) { return (rows + 4) * 4; }

// Shared memory that tiles pass on their way to y, some tokens at a time.
template <class Output, int kTokens, int kGroups = 2>
struct Staging {
  static constexpr int kMost = 64 / int(sizeof(Output));
  static constexpr int kChunk = kTokens < kMost ? kTokens : kMost;  // tokens at a time
  static constexpr int kPitch = 64 * int(sizeof(Output)) + 16;      // bytes of a warpgroup's rows of a token, padded likewise
  static constexpr int kBufferBytes = kChunk * kPitch;              // one of a warpgroup's
  static constexpr int kBuffers = kTokens > kChunk ? 2 : 1;         // that a warpgroup takes turns with
  static constexpr int kBytes = kGroups * 2 * kBufferBytes;
  static_assert(kChunk % 16 == 0);
};

// Where a thread has its sum j in memory of tokens of sum_pitch() bytes, from that of its first on.
template <int kTileRows = kRows>
__device__ constexpr int sum_offset(int j) {
  return (j / 4 * 8 + j % 2) * sum_pitch(kTileRows) + j / 2 % 2 * 32;
}

// Memory in which ways hand their sums to the first, some tokens at a time.
template <int kWays, int kTileRows, int kTokens>
struct Handing {
  static constexpr int kChunk = kTokens < 64 ? kTokens : kTokens % 64 == 0 ? 64 : 32;
  static constexpr int kWayBytes = kChunk * sum_pitch(kTileRows);
  static constexpr int kBytes = (kWays - 1) * kWayBytes;
};

// The sums of all ways to the first, in their order.
template <int kWays, int kTileRows, int kTokens, class Sum>
__device__ inline void add_ways(Sum (&sums)[kTokens / 2], const Thread& me, uint32_t memory) {
  using H = Handing<kWays, kTileRows, kTokens>;
  constexpr int kThreads = kWays * 2 * kTileRows;
  const uint32_t mine = memory + 2 * me.quad * sum_pitch(kTileRows) + me.row() * 4;
#pragma unroll
  for (int c = 0; c < kTokens / H::kChunk; ++c) {
    sync_threads_of(kWaysBarrier, kThreads);  // the first may still be reading, or writing the last tile
#pragma unroll
    for (int j = 0; j < H::kChunk / 2; ++j)
      if (me.way > 0)
        store_shared(mine + (me.way - 1) * H::kWayBytes + sum_offset<kTileRows>(j), bits<float>(sums[c * H::kChunk / 2 + j]));
    sync_threads_of(kWaysBarrier, kThreads);
#pragma unroll
    for (int way = 1; way < kWays; ++way)
#pragma unroll
      for (int j = 0; j < H::kChunk / 2; ++j)
        if (me.way == 0)
          sums[c * H::kChunk / 2 + j] += bits<Sum>(load_shared(mine + (way - 1) * H::kWayBytes + sum_offset<kTileRows>(j)));
  }
}

// Memory through which two warpgroups share out sums, at most kMost of a thread's vectors of four at once.
template <int kTokens, int kMost>
struct Sharing {
  static constexpr int kVectors = kTokens / 16, kAtOnce = std::min(kVectors, kMost);
  static constexpr int kVectorBytes = 128 * 16;
  static constexpr int kBytes = 2 * kAtOnce * kVectorBytes;
};

// Two warpgroups' sums of the same tile to one half of its tokens each, through memory that both may have used before.
template <class S, int kSums, class Sum>
__device__ inline void share_out(const Sum (&sums)[kSums], Sum (&mine)[kSums / 2], int group, uint32_t memory) {
  constexpr int kMine = S::kVectors * 4, kAtOnce = S::kAtOnce, kVectorBytes = S::kVectorBytes;
  static_assert(S::kVectors % kAtOnce == 0);
  const uint32_t to = memory + group * kAtOnce * kVectorBytes + threadIdx.x % 128 * 16;
  const uint32_t from = memory + (group ^ 1) * kAtOnce * kVectorBytes + threadIdx.x % 128 * 16;
#pragma unroll
  for (int first = 0; first < S::kVectors; first += kAtOnce) {
    sync_threads_of(kWaysBarrier, kPair);
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const Sum* const d = sums + (first + v) * 4;
      const auto given = [&](int i) { return bits<float>(group == 0 ? d[kMine + i] : d[i]); };
      store_shared_16(to + v * kVectorBytes, {given(0), given(1), given(2), given(3)});
    }
    sync_threads_of(kWaysBarrier, kPair);
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const Sum* const d = sums + (first + v) * 4;
      const uint4 taken = load_shared_16(from + v * kVectorBytes);
      const Sum others[4] = {bits<Sum>(taken.x), bits<Sum>(taken.y), bits<Sum>(taken.z), bits<Sum>(taken.w)};
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[(first + v) * 4 + i] = (group == 0 ? d[i] : d[kMine + i]) + others[i];
    }
  }
  sync_threads_of(kWaysBarrier, kPair);  // the memory may be written again
}

// Outputs of a row of y from column n on, n < N: at once, or where the row's end or its alignment forbids that, one by one.
template <bool kWholeVectors, class Output, class Vector>
__device__ inline void store_outputs(Output* row, int n, int N, const Vector& outputs) {
  constexpr int kCount = sizeof(Vector) / sizeof(Output);
  if (kWholeVectors || N % kCount == 0) {
    *reinterpret_cast<Vector*>(row + n) = outputs;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (n + i < N) row[n + i] = reinterpret_cast<const Output*>(&outputs)[i];
  }
}

// The blocks of a cluster that share a tile along K: each finishes every kCluster-th chunk of tokens, to which the others send
// their sums.
template <class Output, int kTokens, int kCluster>
struct ClusterShares {
  static constexpr int kChunk = Staging<Output, kTokens>::kChunk, kChunks = kTokens / kChunk;
  static constexpr int kMost = (kChunks + kCluster - 1) / kCluster;  // that a block finishes
  static constexpr int kVectors = kChunk / 8;                        // of four sums that a thread has of a chunk

  // What a block receives, from `threads` in each of the others.
  static constexpr int bytes(int threads) { return (kCluster - 1) * kMost * kVectors * 16 * threads; }
  __device__ static int chunks(int rank) { return (kChunks - rank + kCluster - 1) / kCluster; }
};

// Barriers of a block for its cluster: that the others are done with the memory where they receive, that their sums are here.
constexpr int kClusterBarrierBytes = 16;
__device__ inline void init_cluster_barriers(uint32_t barriers, int cluster) {
  barrier_init(barriers, cluster - 1), barrier_init(barriers + 8, 1);
}

// Once a launch, after cluster_wait(), by `threads` of each block, which have sums: adds the others' to those of this block's
// chunks, in the order of K, and says which these are. `memory` is that of the ring, which the tile is done with.
template <int kCluster, class Output, int kTokens, class Sum>
__device__ inline unsigned meet_cluster(Sum (&sums)[kTokens / 2], int threads, uint32_t barriers, uint32_t memory) {
  using C = ClusterShares<Output, kTokens, kCluster>;
  const int rank = int(blockIdx.x) % kCluster, vector_bytes = threads * 16;
  const uint32_t ready = barriers, arrived = barriers + 8;
  // Of a chunk what one of the others has, from the first of them on.
  const auto received = [&](int other, int chunk) {
    return memory + (other * C::kMost + chunk / kCluster) * C::kVectors * vector_bytes + threadIdx.x * 16;
  };
  sync_threads_of(kMeetBarrier, threads);
  if (threadIdx.x == 0) {
    barrier_expect(arrived, (kCluster - 1) * C::chunks(rank) * C::kVectors * vector_bytes);
#pragma unroll
    for (int block = 0; block < kCluster; ++block)
      if (block != rank) barrier_arrive_remote(remote_address(ready, block));
  }
  barrier_wait_cluster(ready, 0);
#pragma unroll
  for (int c = 0; c < C::kChunks; ++c) {
    const int owner = c % kCluster;
    if (owner == rank) continue;
    const uint32_t to = remote_address(received(rank - (rank > owner), c), owner), counts = remote_address(arrived, owner);
#pragma unroll
    for (int v = 0; v < C::kVectors; ++v) {
      const Sum* const d = sums + c * C::kChunk / 2 + 4 * v;
      store_remote(to + v * vector_bytes, counts, {bits<float>(d[0]), bits<float>(d[1]), bits<float>(d[2]), bits<float>(d[3])});
    }
  }
  barrier_wait_cluster(arrived, 0);
  unsigned mine = 0;
#pragma unroll
  for (int c = 0; c < C::kChunks; ++c) {
    if (c % kCluster != rank) continue;
    mine |= 1u << c;
#pragma unroll
    for (int v = 0; v < C::kVectors; ++v) {
      Sum others[kCluster - 1][4];
#pragma unroll
      for (int other = 0; other < kCluster - 1; ++other) {
        const uint4 four = load_shared_16(received(other, c) + v * vector_bytes);
        others[other][0] = bits<Sum>(four.x), others[other][1] = bits<Sum>(four.y);
        others[other][2] = bits<Sum>(four.z), others[other][3] = bits<Sum>(four.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Sum& sum = sums[c * C::kChunk / 2 + 4 * v + i];
        const auto part = [&](int block) {
          return block == rank ? sum : others[block > rank ? block - 1 : block < kCluster - 1 ? block : 0][i];
        };
        Sum total = part(0);
#pragma unroll
        for (int block = 1; block < kCluster; ++block) total += part(block);
        sum = total;
      }
    }
  }
  return mine;
}

// A warpgroup's 64 rows by kTokens, of which chunks c whose bit of `chunks` is set: transposed through the staging memory, so
// that a row of y leaves in pieces of 64 outputs.
template <int kTokens, class Epilogue, class Sum>
__device__ inline void write_tile(const Sum (&sums)[kTokens / 2], const Thread& me, const Epilogue& epilogue, const Tile& tile,
                                  uint32_t staging, unsigned chunks = ~0u) {
  using Output = typename Epilogue::Output;
  using S = Staging<Output, kTokens>;
  constexpr int kVector = 16 / int(sizeof(Output)), kLanes = 64 / kVector;  // that store a row
  const int thread = threadIdx.x % 128, row = me.warp_row % 64;
  const int n = tile.row + me.group * tile.group_rows, token = tile.token + me.group * tile.group_tokens;  // its first
  const auto upper = epilogue.channel(n + row + me.lane / 4), lower = epilogue.channel(n + row + me.lane / 4 + 8);
  int turn = 0;
#pragma unroll
  for (int c = 0; c < kTokens / S::kChunk; ++c) {
    if ((chunks >> c & 1) == 0) continue;
    const uint32_t buffer = staging + (me.group * S::kBuffers + turn++ % S::kBuffers) * S::kBufferBytes;
#pragma unroll
    for (int j = 0; j < S::kChunk / 16; ++j) {
      const Sum* d = sums + (c * S::kChunk + 16 * j) / 2;
      const int m = token + c * S::kChunk + 16 * j + 2 * me.quad;
      const auto first = epilogue.token(m), second = epilogue.token(m + 1), third = epilogue.token(m + 8),
                 fourth = epilogue.token(m + 9);
      const auto output = [&](int i) {
        return epilogue(d[i], i < 4 ? (i % 2 == 0 ? first : second) : (i % 2 == 0 ? third : fourth), i % 4 < 2 ? upper : lower);
      };
      if constexpr (sizeof(Output) == 2) {
        const uint32_t corners[4] = {rounded_pair<Output>(output(0), output(1)), rounded_pair<Output>(output(2), output(3)),
                                     rounded_pair<Output>(output(4), output(5)), rounded_pair<Output>(output(6), output(7))};
        const int to = 16 * j + me.lane / 16 * 8 + me.lane % 8;
        store_transposed(buffer + to * S::kPitch + (row + me.lane / 8 % 2 * 8) * 2, corners);
      } else {
        const uint32_t at = buffer + (16 * j + 2 * me.quad) * S::kPitch + (row + me.lane / 4) * 4;
#pragma unroll
        for (int i = 0; i < 8; ++i) store_shared(at + (i / 4 * 8 + i % 2) * S::kPitch + i / 2 % 2 * 32, bits<float>(output(i)));
      }
    }
    sync_threads_of(kGroupBarrier + me.group, 128);
#pragma unroll
    for (int j = 0; j < S::kChunk * kLanes / 128; ++j) {
      const int from = 128 / kLanes * j + thread / kLanes, column = n + thread % kLanes * kVector;
      const int64_t m = token + c * S::kChunk + from;
      if (m < epilogue.M && column < min(epilogue.N, tile.end))
        store_outputs<Epilogue::kWholeVectors>(epilogue.y + m * epilogue.N, column, epilogue.N,
                                               load_shared_16(buffer + from * S::kPitch + thread % kLanes * 16));
    }
  }
  sync_threads_of(kGroupBarrier + me.group, 128);  // the buffers may be written again
}

}  // namespace aoext::cuda::wgmma
