// The device's side of tile_scheduler.h.
#pragma once

#include <type_traits>

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sm90a/ptx.cuh"
#include "cuda/kernels/tile_scheduler.h"

namespace aoext::cuda {

// What a block computes next: a tile, all its k-tiles or some of them.
struct WorkTile {
  int tile, first_k_tile, k_tiles;
};

// What a block works through, found once for all its threads, in shared memory: the tiles of its range, whole tiles, and what it
// has of shared tiles.
struct BlockWork {
  WorkTile range;   // in its first tile
  int range_left;   // k-tiles of it in the tiles behind
  int next;         // the first of all other tiles
  WorkTile shared;  // the first that it shares in a cluster, or fixes up: of others it has the same k-tiles
  int stride;       // from one to the next of these

  // By one thread, which all others wait for, so that it should not divide more than it must.
  __device__ void find(const TileScheduler& s) {
    const int block = blockIdx.x;
    range.k_tiles = range_left = 0, shared = {s.tiles, 0, 0}, stride = s.tiles;
    if (s.cluster > 1) {
      const int begin = split_begin(s, cluster_rank()), tile = s.whole_tiles + cluster_index();
      if (tile < s.tiles) shared = {tile, begin, split_begin(s, cluster_rank() + 1) - begin};
    } else if (block < s.stream_k_blocks) {
      const int begin = split_begin(s, block), k_tiles = split_begin(s, block + 1) - begin;
      const int tile = unsigned(begin) / unsigned(s.shared_k_tiles), in_tile = begin - tile * s.shared_k_tiles;
      range = {s.whole_tiles + tile, in_tile, min(s.shared_k_tiles - in_tile, k_tiles)};
      range_left = k_tiles - range.k_tiles;
    } else if (s.stream_k_blocks > 0) {
      shared = {s.whole_tiles + block - s.stream_k_blocks, s.shared_k_tiles, s.k_tiles - s.shared_k_tiles};
      stride = s.fix_up_blocks;
    }
    next = block < s.whole_tiles ? block : shared.tile;
  }
};

__device__ inline WorkTile work_of_tile(const TileScheduler& s, const BlockWork& mine, int tile) {
  return tile < s.whole_tiles ? WorkTile{tile, 0, s.k_tiles} : WorkTile{tile, mine.shared.first_k_tile, mine.shared.k_tiles};
}

// It has no k-tiles where a block has nothing to do.
__device__ inline WorkTile first_work(const TileScheduler& s, const BlockWork& mine) {
  return mine.range.k_tiles > 0 ? mine.range : work_of_tile(s, mine, mine.next);
}

// What a block works through. A fix-up block may have no k-tiles of a tile. `body` stands in one place, so that it is compiled
// once. kStreamK: whether there may be ranges.
template <bool kStreamK = true, class Body>
__device__ inline void for_each_work(const TileScheduler& s, const BlockWork& mine, Body&& body) {
  WorkTile range = kStreamK ? mine.range : WorkTile{};
  int left = mine.range_left, tile = mine.next;
#pragma unroll 1
  for (;;) {
    WorkTile work = range;
    if (!kStreamK || range.k_tiles == 0) {
      if (tile >= s.tiles) return;
      work = work_of_tile(s, mine, tile);
      const bool whole = tile < s.whole_tiles;
      tile += whole ? int(gridDim.x) : mine.stride;
      if (whole && tile >= s.whole_tiles) tile = mine.shared.tile;
    }
    body(work);
    if constexpr (kStreamK) {
      if (range.k_tiles > 0) {
        range = {range.tile + 1, 0, min(s.shared_k_tiles, left)};
        left -= range.k_tiles;
      }
    }
  }
}

// ---- Experts ----

// A tile counted among those of its expert, whose rows of x lie in [begin, end). Behind the last expert there are no k-tiles.
struct GroupedTile : WorkTile {
  int expert, begin, end;
};

// Where each expert's tiles and rows lie, found once for all threads of a block, in shared memory; the rows behind the last count
// as one expert more.
struct GroupedWork {
  int tiles;                         // of all
  int first_tile[kMostExperts + 1];  // of rows
  int end[kMostExperts + 1];         // the row behind the last

  // By one warp, which all others wait for.
  __device__ void find(const GroupedScheduler& s, int block_m) {
    const AllExperts all = for_each_expert(s.ends, s.experts, s.rows, block_m, [&](const LaneExperts& own) {
#pragma unroll
      for (int i = 0; i < LaneExperts::kCount; ++i)
        if (own.first + i < s.experts) first_tile[own.first + i] = own.first_tile[i], end[own.first + i] = own.end[i];
    });
    if (threadIdx.x % 32 > 0) return;
    first_tile[s.experts] = all.tiles, end[s.experts] = s.rows;
    tiles = (all.tiles + (s.rows - all.end + block_m - 1) / block_m) * s.along_n;
  }

  // The expert of a tile of rows is the last whose first one is not behind it.
  __device__ GroupedTile tile(const GroupedScheduler& s, int index) const {
    const int row_tile = unsigned(index) / unsigned(s.along_n);
    int expert = 0;
    for (int step = 1 << (31 - __clz(s.experts)); step > 0; step /= 2)
      if (expert + step <= s.experts && first_tile[expert + step] <= row_tile) expert += step;
    return {{index - first_tile[expert] * s.along_n, 0, expert < s.experts ? s.k_tiles : 0},
            expert,
            expert > 0 ? end[expert - 1] : 0,
            end[expert]};
  }
};

template <bool kStreamK = false, class Body>
__device__ inline void for_each_work(const GroupedScheduler& s, const GroupedWork& mine, Body&& body) {
#pragma unroll 1
  for (int index = blockIdx.x; index < mine.tiles; index += gridDim.x) body(mine.tile(s, index));
}

template <class Scheduler>
constexpr bool kGrouped = std::is_same_v<Scheduler, GroupedScheduler>;

// What a block finds of a schedule.
template <class Scheduler>
using WorkOf = std::conditional_t<kGrouped<Scheduler>, GroupedWork, BlockWork>;

// Where the rows of x end that a tile may have, of M in all; and the expert whose weight it is, 0 where there is one weight.
__device__ inline int rows_end(const WorkTile&, int64_t M) { return static_cast<int>(M); }
__device__ inline int rows_end(const GroupedTile& work, int64_t) { return work.end; }
__device__ inline int weight_of(const WorkTile&) { return 0; }
__device__ inline int weight_of(const GroupedTile& work) { return work.expert; }

// ---- Stream-K ----

// Whether work is of a range, which stores partial sums; and whether it is a fix-up block's, which adds them.
__device__ inline bool is_of_range(const TileScheduler& s, const WorkTile& work) {
  return s.stream_k_blocks > 0 && work.tile >= s.whole_tiles && work.first_k_tile < s.shared_k_tiles;
}
__device__ inline bool is_fix_up(const TileScheduler& s, const WorkTile& work) {
  return s.stream_k_blocks > 0 && work.tile >= s.whole_tiles && work.first_k_tile == s.shared_k_tiles;
}

// Sets a launch's counters to zero while the kernel that needs them starts. (A template, so that only files that launch it hold
// its code.)
template <class Counter>
__global__ void clear_counters(Counter* counters, int count) {
  start_next_kernel();
  wait_for_last_kernel();
  for (int i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
}

__device__ __forceinline__ unsigned load_acquired(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Adds one, visible only after all that this thread has observed.
__device__ __forceinline__ void count_one(unsigned* p) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

// The partial sums of a shared tile, as one of kThreads that have kSums of its sums each.
template <class Sum, int kSums, int kThreads>
class StreamKPartials {
 public:
  __device__ StreamKPartials(const TileScheduler& s, int tile) : s_(s), tile_(tile - s.whole_tiles) {}

  // Stores those of this block's range. All threads call it; signal_partials tells the fix-up block.
  __device__ void store(const Sum (&sums)[kSums], const BlockWork& mine, uint32_t barriers) const {
    float4* const to = partials_of(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      __stcg(to + i * kThreads, float4{bits<float>(sums[4 * i]), bits<float>(sums[4 * i + 1]), bits<float>(sums[4 * i + 2]),
                                       bits<float>(sums[4 * i + 3])});
    const int turn = tile_ + s_.whole_tiles - mine.range.tile;
    if (turn > 0) barrier_wait(barriers + 8, (turn - 1) & 1);  // a parity tells a turn from the next alone
    __syncwarp();
    if (arrives(threadIdx.x % 32)) barrier_arrive(barriers);
  }

  // Adds those of all ranges, as soon as they are stored. All threads call it, with a barrier of theirs.
  __device__ void add(Sum (&sums)[kSums], int barrier) const {
    const int begin = tile_ * s_.shared_k_tiles;
    const int first = split_of(s_, begin), end = split_of(s_, begin + s_.shared_k_tiles - 1) + 1;
    if (threadIdx.x == 0)
      while (load_acquired(s_.counters + tile_) != unsigned(end - first)) {
      }
    sync_threads_of(barrier, kThreads);
    constexpr int kAtOnce = kSums <= 64 ? 2 : 1;  // ranges whose sums registers have room for: memory is far
#pragma unroll 1
    for (int range = first; range < end; range += kAtOnce) {
      float4 v[kAtOnce][kSums / 4];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) v[r][i] = range + r < end ? __ldcg(partials_of(range + r) + i * kThreads) : float4{};
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          sums[4 * i] += bits<Sum>(v[r][i].x), sums[4 * i + 1] += bits<Sum>(v[r][i].y);
          sums[4 * i + 2] += bits<Sum>(v[r][i].z), sums[4 * i + 3] += bits<Sum>(v[r][i].w);
        }
    }
  }

 private:
  const TileScheduler& s_;
  int tile_;  // of the shared ones

  // tile_scheduler.h says why these places are distinct.
  __device__ float4* partials_of(int range) const {
    return s_.partials + int64_t(range + tile_) * (kSums / 4 * kThreads) + threadIdx.x;
  }
};

// Two barriers of a block that has a range: all warps have stored their partial sums; the thread that signals them knows.
constexpr int kPartialBarrierBytes = 16;
__device__ inline void init_partial_barriers(uint32_t barriers, int warps) {
  barrier_init(barriers, warps * kArrivals), barrier_init(barriers + 8, 1);
}

// Counts each tile that the block stores partial sums of, once memory has them. By a thread that does nothing else, since it
// waits for memory.
__device__ inline void signal_partials(const TileScheduler& s, const BlockWork& mine, uint32_t barriers) {
  wait_for_last_kernel();  // clear_counters
  unsigned* counter = s.counters + (mine.range.tile - s.whole_tiles);
  int parity = 0;
  for (int k_tiles = mine.range.k_tiles, left = mine.range_left; k_tiles > 0;
       k_tiles = min(s.shared_k_tiles, left), left -= k_tiles) {
    barrier_wait(barriers, parity);
    barrier_arrive(barriers + 8);
    count_one(counter);
    ++counter, parity ^= 1;
  }
}

}  // namespace aoext::cuda
