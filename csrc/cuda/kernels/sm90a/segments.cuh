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

// Where a part begins: in stages of a tile, or of all tiles of the rest where ranges share them.
__device__ inline int part_begin(const Segments& s, int part) { return part * s.part_stages + min(part, s.longer); }

// The part that has a stage.
__device__ inline int part_of(const Segments& s, int stage) {
  const int in_longer = s.longer * (s.part_stages + 1);
  return stage < in_longer ? unsigned(stage) / unsigned(s.part_stages + 1)
                           : s.longer + unsigned(stage - in_longer) / unsigned(s.part_stages);
}

// A block's parts of the rest, found once for all its threads, in shared memory; what ends them has no stages.
struct Rest {
  Segment segments[3];
  bool complete;  // nobody else has anything to leave of the tile

  // By one thread, which all others wait for, so that it should not divide.
  __device__ void find(const Segments& s) {
    if (s.cluster > 1) {
      const int tile = cluster_index(), first = part_begin(s, cluster_rank());
      const bool mine = tile < s.tiles - s.whole_tiles;
      segments[0] = {s.whole_tiles + tile, first, mine ? part_begin(s, cluster_rank() + 1) - first : 0};
      segments[1].stages = 0;
    } else if (int(blockIdx.x) < s.ranges) {
      const int begin = part_begin(s, blockIdx.x);
      int tile = unsigned(begin) / unsigned(s.stages), first = begin - tile * s.stages;
      int left = part_begin(s, blockIdx.x + 1) - begin;
      for (Segment& segment : segments) {
        segment = {s.whole_tiles + tile, first, min(s.stages - first, left)};
        left -= segment.stages, ++tile, first = 0;
      }
    } else {
      segments[0].stages = 0;
    }
  }
};

__device__ inline Segment first_segment(const Segments& s, const Rest& rest) {
  return int(blockIdx.x) < s.whole_tiles ? Segment{int(blockIdx.x), 0, s.stages} : rest.segments[0];
}

// What a block works through. The body stands in one place, so that it is compiled once.
template <class Body>
__device__ inline void each_segment(const Segments& s, const Rest& rest, Body&& body) {
  const Segment* next = rest.segments;
#pragma unroll 1
  for (int tile = blockIdx.x;; tile += gridDim.x) {
    const Segment segment = tile < s.whole_tiles ? Segment{tile, 0, s.stages} : *next++;
    if (segment.stages == 0) return;
    body(segment);
  }
}

// Sets a launch's counters to zero while the kernel that needs them starts. (A template, so that only who calls it has it.)
template <class Counter>
__global__ void clear_counters(Counter* counters, int count) {
  wait_for_last_kernel();
  start_next_kernel();
  for (int i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
}

__device__ __forceinline__ unsigned load_acquired(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Counts one more, behind all that this thread knows of, and says how many there were.
__device__ __forceinline__ unsigned count_one(unsigned* p) {
  unsigned v;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Brings the sums of a tile together that ranges share: true for the one block that has them all then. Whoever has the tile's
// first stages comes to it last, waits a little for the others, and spares itself the memory; should they take longer it leaves
// its sums as they do, so that nobody depends on who else runs. All `threads` of a block's that hold sums call it, with a barrier
// of theirs.
template <class Sum, int kSums>
__device__ inline bool meet(Sum (&sums)[kSums], const Segments& s, Rest& rest, const Segment& segment, int thread, int threads,
                            int barrier) {
  constexpr int kPieces = kSums / 4, kPolls = 16;
  const int tile = segment.tile - s.whole_tiles, begin = tile * s.stages;
  const int first = part_of(s, begin);
  const unsigned others = part_of(s, begin + s.stages - 1) - first;
  unsigned* const counter = s.counters + tile;
  const auto left_by = [&](int range) {
    const int second = part_begin(s, range) < begin;  // of the two tiles that a range may leave something of
    return s.partials + (int64_t(range) * 2 + second) * (kPieces * threads) + thread;
  };
  const auto add = [&](int range) {
    const float4* const from = left_by(range);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 v = __ldcg(from + i * threads);
      sums[4 * i] += bits<Sum>(v.x), sums[4 * i + 1] += bits<Sum>(v.y);
      sums[4 * i + 2] += bits<Sum>(v.z), sums[4 * i + 3] += bits<Sum>(v.w);
    }
  };

  bool own = false;  // the sums of the tile's first stages are here, and not in memory
  if (segment.first_stage == 0) {
    sync_threads_of(barrier, threads);  // who reads `complete` has read it
    if (thread == 0) {
      wait_for_last_kernel();  // clear_counters
      unsigned came = 0;
      for (int i = 0; i < kPolls && came != others; ++i) came = load_acquired(counter);
      rest.complete = came == others;
    }
    sync_threads_of(barrier, threads);
    own = rest.complete;
  }
  if (!own) {
    float4* const to = left_by(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      __stcg(to + i * threads, float4{bits<float>(sums[4 * i]), bits<float>(sums[4 * i + 1]), bits<float>(sums[4 * i + 2]),
                                      bits<float>(sums[4 * i + 3])});
    sync_threads_of(barrier, threads);
    if (thread == 0) {
      wait_for_last_kernel();
      rest.complete = count_one(counter) == others;
    }
    sync_threads_of(barrier, threads);
    if (!rest.complete) return false;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = static_cast<Sum>(-0.f);  // which changes nothing that is added
  }
  for (unsigned i = own; i <= others; ++i) add(first + i);
  return true;
}

}  // namespace aoext::cuda
