// What the wgmma kernels share: where a tile lies, rings of stages, and the way from sums to y.
//
// With swap_ab output channels are rows of the instruction, and rows of x its columns, so that y comes transposed.
//
// Sums are float, or int where x and w are int8. What makes outputs of them is a kernel's own:
//
//   struct Epilogue {
//     using Sum = ...; using Output = ...;     // Output: bf16, fp16, float or int
//     static constexpr bool kWholeVectors;     // N is a multiple of 16 bytes of outputs
//     Output* y; int M, N;
//     auto channel(int n) const;               // what the outputs of an output channel share; n may lie beyond N
//     auto row(int m) const;                   // what those of a row of x share; m may lie beyond M. Or Rows, see write_tile
//     auto operator()(Sum, row, channel) const;  // float, or int where y is
//   };
#pragma once

#include <algorithm>
#include <numeric>

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/sm90a/tile_scheduler.cuh"

namespace aoext::cuda::wgmma {

constexpr int kPairN = 128;  // output channels of two warpgroups, 64 each
constexpr int kPair = 256;   // threads of two warpgroups
constexpr int kPairWarps = kPair / 32;
// Named barriers: of all consumers, in the reduction over splits; of each warpgroup; of all threads with sums of a tile, in the
// reductions over blocks.
constexpr int kSplitsBarrier = 1, kGroupBarrier = 2, kReductionBarrier = 5;
constexpr int kLine = 128;   // bytes of a row in shared memory, swizzled by the bulk tensor copies
constexpr int kRaster = 32;  // tiles along N that run at the same time, so that L2 serves x and w

// ---- Tiles and rings ----

struct Tiles {
  int along_n, along_m;
};

// Where a tile lies: the same for all threads of a block.
struct Tile {
  int n, m;  // first output channel, first row of x
  // Distance from the first warpgroup's 64 output channels, and from its rows of x, to the second's.
  int group_n = 64, group_m = 0;
  int end_n = 0x7fffffff;  // the output channel behind its last one, where it has fewer than BLOCK_N
};

__device__ inline Tile tile_of(const Tiles& tiles, int index, int block_m, int block_n) {
  const int area = kRaster * tiles.along_m;
  const int strip = index / area;
  const int in_strip = index % area;
  const int height = min(kRaster, tiles.along_n - strip * kRaster);
  return {(strip * kRaster + in_strip % height) * block_n, in_strip / height * block_m};
}

__device__ inline Tile tile_of(const Tiles& tiles, const WorkTile& work, int block_m, int block_n) {
  return tile_of(tiles, work.tile, block_m, block_n);
}

__device__ inline Tile tile_of(const Tiles& tiles, const GroupedTile& work, int block_m, int block_n) {
  const int along_m = (work.end - work.begin + block_m - 1) / block_m;
  Tile tile = tile_of({tiles.along_n, along_m}, work.tile, block_m, block_n);
  tile.m += work.begin;
  return tile;
}

// Rows of x of a tile that are copied. Copies beyond M are left out, since filling in what a tensor does not have is slow (192
// rows took longer than 256). Those rows of the stage keep what they held, and their outputs are not stored.
__device__ inline int copied_rows(int64_t M, const Tile& tile, int block_m, int at_once) {
  const int rows = min(block_m, int(M) - tile.m);
  return (rows + at_once - 1) / at_once * at_once;
}

// A position in a ring of stages, and the parities of its barriers there: one counter where the barriers are a power of two,
// since narrow tiles are short of registers.
//
// A stage has an "empty" barrier and at least one "full" barrier. A parity distinguishes a round of the ring from the one before
// and the one after only, so whoever waits must have seen the last round. Where kTurns warpgroups take k-tiles in turns and
// kTurns does not divide kStages, a warpgroup comes to the same stage in every kTurns-th round only; so each of them has "full"
// barriers of its own.
template <int kStages, int kTurns = 1>
class Ring {
 public:
  static constexpr int kFullBarriers = std::lcm(kStages, kTurns);

  __device__ explicit Ring(int first = 0) : stage_(first) {}

  __device__ int slot() const {
    return kFullBarriers == kStages ? full() : full() % kStages;
  }  // the stage, and its "empty" barrier
  __device__ int round() const { return slot(); }  // slot() = round() + step(); RingOfRounds makes step() a constant
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

// The same for loops over rounds of kSteps stages, unrolled: the compiler knows a stage's step in its round, so that addresses
// are sums with constants, and only rounds are counted. A warpgroup takes every kTurns-th step.
template <int kStages, int kTurns, int kSteps>
class RingOfRounds {
 public:
  static constexpr int kFullBarriers = kStages;
  static_assert(kStages % kSteps == 0 && kSteps % kTurns == 0);

  __device__ explicit RingOfRounds(int first = 0) : round_(first) {}

  // Tells the compiler the step, which it cannot see where a round is left and entered in the middle.
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

// The matrix descriptor of rows of kLine bytes, eight of them to a swizzled atom of 1024 bytes: its lower word, and all of it.
// Addresses and strides are in units of 16 bytes; an offset along k is added to the lower word; of an address 18 bits count.
__device__ inline uint32_t lines_descriptor(uint32_t address) { return 1 << 16 | (address & 0x3ffff) >> 4; }
__device__ inline uint64_t matrix_of_lines(uint32_t descriptor) { return uint64_t(1 << 30 | 1024 >> 4) << 32 | descriptor; }

// ---- From sums to y ----

// A consumer thread. It holds the sums of rows row(), row() + 8 of the instruction by columns 8 j + 2 quad, 8 j + 2 quad + 1.
struct Thread {
  int split, group;  // which k-split of the warpgroups, which warpgroup of that
  int lane, quad;    // quad: place among four
  int warp_row;      // first of the warp's 16 rows of the instruction
  __device__ int row() const { return warp_row + lane / 4; }
};

// Bytes of the sums of one row of x in shared memory, padded against bank conflicts.
__host__ __device__ constexpr int sum_pitch(int rows) { return (rows + 4) * 4; }

// Shared memory through which outputs go to y, some rows of x at a time.
template <class Output, int kBlockM, int kGroups = 2>
struct Staging {
  static constexpr int kMost = 64 / int(sizeof(Output));
  static constexpr int kChunk = kBlockM < kMost ? kBlockM : kMost;  // rows of x at a time
  static constexpr int kPitch = 64 * int(sizeof(Output)) + 16;  // bytes of a warpgroup's output channels of one of them, padded
  static constexpr int kBufferBytes = kChunk * kPitch;          // one buffer of a warpgroup
  static constexpr int kBuffers = kBlockM > kChunk ? 2 : 1;     // of a warpgroup, in turns
  static constexpr int kBytes = kGroups * 2 * kBufferBytes;
  static_assert(kChunk % 16 == 0);
};

// Where a thread stores its sum j, relative to its first, in memory with sum_pitch() bytes for each row of x.
template <int kBlockN = kPairN>
__device__ constexpr int sum_offset(int j) {
  return (j / 4 * 8 + j % 2) * sum_pitch(kBlockN) + j / 2 % 2 * 32;
}

// Shared memory for the reduction over splits, some rows of x at a time.
template <int kWarpgroupSplits, int kBlockN, int kBlockM>
struct Handing {
  static constexpr int kChunk = kBlockM < 64 ? kBlockM : kBlockM % 64 == 0 ? 64 : 32;
  static constexpr int kSplitBytes = kChunk * sum_pitch(kBlockN);
  static constexpr int kBytes = (kWarpgroupSplits - 1) * kSplitBytes;
};

// Split-K reduction over splits: the first adds the sums of all, in their order.
template <int kWarpgroupSplits, int kBlockN, int kBlockM, class Sum>
__device__ inline void reduce_warpgroup_splits(Sum (&sums)[kBlockM / 2], const Thread& me, uint32_t memory) {
  using H = Handing<kWarpgroupSplits, kBlockN, kBlockM>;
  constexpr int kThreads = kWarpgroupSplits * 2 * kBlockN;
  const uint32_t mine = memory + 2 * me.quad * sum_pitch(kBlockN) + me.row() * 4;
#pragma unroll
  for (int c = 0; c < kBlockM / H::kChunk; ++c) {
    sync_threads_of(kSplitsBarrier, kThreads);  // the first may still read here, or store the last tile
#pragma unroll
    for (int j = 0; j < H::kChunk / 2; ++j)
      if (me.split > 0)
        store_shared(mine + (me.split - 1) * H::kSplitBytes + sum_offset<kBlockN>(j), bits<float>(sums[c * H::kChunk / 2 + j]));
    sync_threads_of(kSplitsBarrier, kThreads);
#pragma unroll
    for (int split = 1; split < kWarpgroupSplits; ++split)
#pragma unroll
      for (int j = 0; j < H::kChunk / 2; ++j)
        if (me.split == 0)
          sums[c * H::kChunk / 2 + j] += bits<Sum>(load_shared(mine + (split - 1) * H::kSplitBytes + sum_offset<kBlockN>(j)));
  }
}

// Shared memory for share_out: at most kMost of a thread's vectors of four sums at once.
template <int kBlockM, int kMost>
struct Sharing {
  static constexpr int kVectors = kBlockM / 16, kAtOnce = std::min(kVectors, kMost);
  static constexpr int kVectorBytes = 128 * 16;
  static constexpr int kBytes = 2 * kAtOnce * kVectorBytes;
};

// Split-K reduction over two warpgroups with sums of the same tile: each gets the total of half its rows of x. Both may have used
// the memory before.
template <class S, int kSums, class Sum>
__device__ inline void share_out(const Sum (&sums)[kSums], Sum (&mine)[kSums / 2], int group, uint32_t memory) {
  constexpr int kOwnM = S::kVectors * 4, kAtOnce = S::kAtOnce, kVectorBytes = S::kVectorBytes;
  static_assert(S::kVectors % kAtOnce == 0);
  const uint32_t to = memory + group * kAtOnce * kVectorBytes + threadIdx.x % 128 * 16;
  const uint32_t from = memory + (group ^ 1) * kAtOnce * kVectorBytes + threadIdx.x % 128 * 16;
#pragma unroll
  for (int first = 0; first < S::kVectors; first += kAtOnce) {
    sync_threads_of(kSplitsBarrier, kPair);
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const Sum* const d = sums + (first + v) * 4;
      const auto given = [&](int i) { return bits<float>(group == 0 ? d[kOwnM + i] : d[i]); };
      store_shared_16(to + v * kVectorBytes, {given(0), given(1), given(2), given(3)});
    }
    sync_threads_of(kSplitsBarrier, kPair);
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const Sum* const d = sums + (first + v) * 4;
      const uint4 taken = load_shared_16(from + v * kVectorBytes);
      const Sum others[4] = {bits<Sum>(taken.x), bits<Sum>(taken.y), bits<Sum>(taken.z), bits<Sum>(taken.w)};
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[(first + v) * 4 + i] = (group == 0 ? d[i] : d[kOwnM + i]) + others[i];
    }
  }
  sync_threads_of(kSplitsBarrier, kPair);  // the memory may be written again
}

// Stores outputs of a row of y from column n < N on: as one vector, or one by one where the row's end or alignment forbids that.
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

// Split-K over the blocks of a cluster: each finishes every kCluster-th chunk of rows of x, to which the others send their sums.
template <class Output, int kBlockM, int kCluster>
struct ClusterShares {
  static constexpr int kChunk = Staging<Output, kBlockM>::kChunk, kChunks = kBlockM / kChunk;
  static constexpr int kMost = (kChunks + kCluster - 1) / kCluster;  // that a block finishes
  static constexpr int kVectors = kChunk / 8;                        // of four sums, a thread's of a chunk

  // Bytes that a block receives from `threads` threads of each of the others.
  static constexpr int bytes(int threads) { return (kCluster - 1) * kMost * kVectors * 16 * threads; }
  __device__ static int chunks(int rank) { return (kChunks - rank + kCluster - 1) / kCluster; }
};

// Two barriers of a block: the others no longer use the memory in which they receive; their sums have arrived here.
constexpr int kClusterBarrierBytes = 16;
__device__ inline void init_cluster_barriers(uint32_t barriers, int cluster) {
  barrier_init(barriers, cluster - 1), barrier_init(barriers + 8, 1);
}

// Split-K reduction over a cluster, in the order of K. By the `threads` of each block that have sums, once a launch, after
// cluster_wait(). Returns a bit for each chunk whose total this block has. `memory` is that of the stages, which are read by
// then.
template <int kCluster, class Output, int kBlockM, class Sum>
__device__ inline unsigned reduce_cluster(Sum (&sums)[kBlockM / 2], int threads, uint32_t barriers, uint32_t memory) {
  using C = ClusterShares<Output, kBlockM, kCluster>;
  const int rank = int(blockIdx.x) % kCluster, vector_bytes = threads * 16;
  const uint32_t ready = barriers, arrived = barriers + 8;
  // Where another block's sums of a chunk arrive; `other` counts the other blocks.
  const auto received = [&](int other, int chunk) {
    return memory + (other * C::kMost + chunk / kCluster) * C::kVectors * vector_bytes + threadIdx.x * 16;
  };
  sync_threads_of(kReductionBarrier, threads);
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

// What outputs of a row of x share, asked of an epilogue when it is needed.
template <class Epilogue>
struct LateRows {
  const Epilogue* epilogue;
  int first_m;
  __device__ auto operator()(int first, int in) const { return epilogue->row(first_m + first + in); }
};

// Stores a warpgroup's 64 output channels by kBlockM rows of x, of which chunks c whose bit of `chunks` is set: transposed
// through staging memory, so that a row of y is stored in pieces of 64 outputs. `rows`: of row first + in of these kBlockM, what
// its outputs share; `first` is a constant.
template <int kBlockM, class Epilogue, class Sum, class Rows>
__device__ inline void write_tile(const Sum (&sums)[kBlockM / 2], const Thread& me, const Epilogue& epilogue, const Rows& rows,
                                  const Tile& tile, uint32_t staging, unsigned chunks = ~0u) {
  using Output = typename Epilogue::Output;
  using S = Staging<Output, kBlockM>;
  constexpr int kVector = 16 / int(sizeof(Output)), kLanes = 64 / kVector;  // that store a row of y
  const int thread = threadIdx.x % 128, row = me.warp_row % 64;
  const int first_n = tile.n + me.group * tile.group_n, first_m = tile.m + me.group * tile.group_m;
  const auto upper = epilogue.channel(first_n + row + me.lane / 4), lower = epilogue.channel(first_n + row + me.lane / 4 + 8);
  int turn = 0;
#pragma unroll
  for (int c = 0; c < kBlockM / S::kChunk; ++c) {
    if ((chunks >> c & 1) == 0) continue;
    const uint32_t buffer = staging + (me.group * S::kBuffers + turn++ % S::kBuffers) * S::kBufferBytes;
#pragma unroll
    for (int j = 0; j < S::kChunk / 16; ++j) {
      const Sum* d = sums + (c * S::kChunk + 16 * j) / 2;
      const auto row_of = [&](int i) { return rows(c * S::kChunk + 16 * j, 2 * me.quad + i); };
      const auto first = row_of(0), second = row_of(1), third = row_of(8), fourth = row_of(9);
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
      const int from = 128 / kLanes * j + thread / kLanes, column = first_n + thread % kLanes * kVector;
      const int64_t m = first_m + c * S::kChunk + from;
      if (m < epilogue.M && column < min(epilogue.N, tile.end_n))
        store_outputs<Epilogue::kWholeVectors>(epilogue.y + m * epilogue.N, column, epilogue.N,
                                               load_shared_16(buffer + from * S::kPitch + thread % kLanes * 16));
    }
  }
  sync_threads_of(kGroupBarrier + me.group, 128);  // the buffers may be written again
}

}  // namespace aoext::cuda::wgmma
