// The device's side of segments.h.
#pragma once

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/sm90a/ptx.cuh"

namespace aoext::cuda {

// Stages of K of a tile.
struct Segment {
  int tile, first_stage, stages;
};

// What a block works through, found once for all its threads, in shared memory: its range, whole tiles, and of others a part.
struct Rest {
  Segment first;  // of its range
  int left;       // stages of it in the tiles behind
  int next;       // the first of all other tiles
  Segment last;   // the first that it shares in a cluster, or owns: of others it has as many stages
  int turn;       // from one to the next of these

  // By one thread, which all others wait for, so that it should not divide more than it must.
  __device__ void find(const Segments& s) {
    const int block = blockIdx.x;
    first.stages = left = 0, last = {s.tiles, 0, 0}, turn = s.tiles;
    if (s.cluster > 1) {
      const int begin = part_begin(s, cluster_rank()), tile = s.whole_tiles + cluster_index();
      if (tile < s.tiles) last = {tile, begin, part_begin(s, cluster_rank() + 1) - begin};
    } else if (block < s.ranges) {
      const int begin = part_begin(s, block), stages = part_begin(s, block + 1) - begin;
      const int tile = unsigned(begin) / unsigned(s.shared_stages), in_tile = begin - tile * s.shared_stages;
      first = {s.whole_tiles + tile, in_tile, min(s.shared_stages - in_tile, stages)};
      left = stages - first.stages;
    } else if (s.ranges > 0) {
      last = {s.whole_tiles + block - s.ranges, s.shared_stages, s.stages - s.shared_stages};
      turn = s.owners;
    }
    next = block < s.whole_tiles ? block : last.tile;
  }
};

__device__ inline Segment part_of_tile(const Segments& s, const Rest& rest, int tile) {
  return tile < s.whole_tiles ? Segment{tile, 0, s.stages} : Segment{tile, rest.last.first_stage, rest.last.stages};
}

// It has no stages where a block has nothing to do.
__device__ inline Segment first_segment(const Segments& s, const Rest& rest) {
  return rest.first.stages > 0 ? rest.first : part_of_tile(s, rest, rest.next);
}

// What a block works through. An owner's segments may have no stages. The body stands in one place, so that it is compiled once.
template <bool kRanges = true, class Body>
__device__ inline void each_segment(const Segments& s, const Rest& rest, Body&& body) {
  Segment range = kRanges ? rest.first : Segment{};
  int left = rest.left, tile = rest.next;
#pragma unroll 1
  for (;;) {
    Segment segment = range;
    if (!kRanges || range.stages == 0) {
      if (tile >= s.tiles) return;
      segment = part_of_tile(s, rest, tile);
      const bool whole = tile < s.whole_tiles;
      tile += whole ? int(gridDim.x) : rest.turn;
      if (whole && tile >= s.whole_tiles) tile = rest.last.tile;
    }
    body(segment);
    if constexpr (kRanges) {
      if (range.stages > 0) {
        range = {range.tile + 1, 0, min(s.shared_stages, left)};
        left -= range.stages;
      }
    }
  }
}

// Whether a segment is of a range, whose sums are left to others; and whether it is an owner's, who brings a tile together.
__device__ inline bool is_left(const Segments& s, const Segment& segment) {
  return s.ranges > 0 && segment.tile >= s.whole_tiles && segment.first_stage < s.shared_stages;
}
__device__ inline bool is_owned(const Segments& s, const Segment& segment) {
  return s.ranges > 0 && segment.tile >= s.whole_tiles && segment.first_stage == s.shared_stages;
}

// Sets a launch's counters to zero while the kernel that needs them starts. (A template, so that only who calls it has it.)
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

// Counts one more, behind all that this thread knows of.
__device__ __forceinline__ void count_one(unsigned* p) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

// What ranges left of a tile, as one of kThreads that have sums of it each.
template <class Sum, int kSums, int kThreads>
class Partials {
 public:
  __device__ Partials(const Segments& s, int tile) : s_(s), tile_(tile - s.whole_tiles) {}

  // Leaves this block's. All threads call it.
  __device__ void leave(const Sum (&sums)[kSums], const Rest& rest, uint32_t barriers) const {
    float4* const to = left_by(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      __stcg(to + i * kThreads, float4{bits<float>(sums[4 * i]), bits<float>(sums[4 * i + 1]), bits<float>(sums[4 * i + 2]),
                                       bits<float>(sums[4 * i + 3])});
    const int turn = tile_ + s_.whole_tiles - rest.first.tile;
    if (turn > 0) barrier_wait(barriers + 8, (turn - 1) & 1);  // a parity tells a turn from the next alone
    __syncwarp();
    if (arrives(threadIdx.x % 32)) barrier_arrive(barriers);
  }

  // Adds what all ranges left, as soon as they have. All threads call it, with a barrier of theirs.
  __device__ void add(Sum (&sums)[kSums], int barrier) const {
    const int begin = tile_ * s_.shared_stages;
    const int first = part_of(s_, begin), end = part_of(s_, begin + s_.shared_stages - 1) + 1;
    if (threadIdx.x == 0)
      while (load_acquired(s_.counters + tile_) != unsigned(end - first)) {
      }
    sync_threads_of(barrier, kThreads);
    constexpr int kAtOnce = kSums <= 64 ? 2 : 1;  // whose sums registers have room for: memory is far
#pragma unroll 1
    for (int range = first; range < end; range += kAtOnce) {
      float4 v[kAtOnce][kSums / 4];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) v[r][i] = range + r < end ? __ldcg(left_by(range + r) + i * kThreads) : float4{};
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
  const Segments& s_;
  int tile_;  // of the rest

  // From a range to the next, and from a tile to the next, one of them or both are others.
  __device__ float4* left_by(int range) const {
    return s_.partials + int64_t(range + tile_) * (kSums / 4 * kThreads) + threadIdx.x;
  }
};

// Barriers of a block for what it leaves: that all of so many warps have, and that this is known.
constexpr int kLeavingBarrierBytes = 16;
__device__ inline void init_leaving_barriers(uint32_t barriers, int warps) {
  barrier_init(barriers, warps * kArrivals), barrier_init(barriers + 8, 1);
}

// By a thread that does nothing else, since it waits until memory has what was left: counts each tile that the block leaves
// something of.
__device__ inline void count_leaving(const Segments& s, const Rest& rest, uint32_t barriers) {
  wait_for_last_kernel();  // clear_counters
  unsigned* counter = s.counters + (rest.first.tile - s.whole_tiles);
  int parity = 0;
  for (int stages = rest.first.stages, left = rest.left; stages > 0; stages = min(s.shared_stages, left), left -= stages) {
    barrier_wait(barriers, parity);
    barrier_arrive(barriers + 8);
    count_one(counter);
    ++counter, parity ^= 1;
  }
}

}  // namespace aoext::cuda
