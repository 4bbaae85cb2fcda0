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

// In stages of all tiles of the rest.
__device__ inline int range_begin(const Segments& s, int range) {
  return int(int64_t(s.tiles - s.whole_tiles) * s.stages * range / s.ranges);
}

// A block's parts of the rest, found once for all its threads, in shared memory; what ends them has no stages.
struct Rest {
  Segment segments[3];
  bool complete;  // nobody else has anything to leave of the tile

  // By one thread.
  __device__ void find(const Segments& s) {
    const int block = blockIdx.x;
    int at = 0, end = 0;
    if (s.cluster > 1) {
      const int tile = block / s.cluster, rank = block % s.cluster;
      if (tile < s.tiles - s.whole_tiles)
        at = tile * s.stages + s.stages * rank / s.cluster, end = tile * s.stages + s.stages * (rank + 1) / s.cluster;
    } else if (block < s.ranges) {
      at = range_begin(s, block), end = range_begin(s, block + 1);
    }
    for (Segment& segment : segments) {
      const int tile = at / s.stages, first = at % s.stages;
      segment = {s.whole_tiles + tile, first, min(s.stages - first, end - at)};
      at += segment.stages;
    }
  }
};

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

// Brings the sums of a tile together that ranges share: true for the one block that has them all then. Whoever has the tile's
// first stages comes to it last, waits a little for the others, and spares itself the memory; should they take longer it leaves
// its sums as they do, so that nobody depends on who else runs. All `threads` of a block's that hold sums call it, with a barrier
// of theirs.
template <class Sum, int kSums>
__device__ inline bool meet(Sum (&sums)[kSums], const Segments& s, Rest& rest, const Segment& segment, int thread, int threads,
                            int barrier) {
  constexpr int kPieces = kSums / 4, kPolls = 16;
  const int tile = segment.tile - s.whole_tiles, begin = tile * s.stages;
  int first = int(int64_t(begin) * s.ranges / (int64_t(s.tiles - s.whole_tiles) * s.stages));
  while (range_begin(s, first + 1) <= begin) ++first;
  unsigned others = 0;
  while (range_begin(s, first + 1 + others) < begin + s.stages) ++others;
  unsigned* const counter = s.counters + tile;
  const auto left_by = [&](int range) {
    const int second = tile - range_begin(s, range) / s.stages;  // of the two tiles that a range may leave something of
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
    __threadfence();
    sync_threads_of(barrier, threads);
    if (thread == 0) {
      wait_for_last_kernel();
      rest.complete = atomicAdd(counter, 1u) == others;
    }
    sync_threads_of(barrier, threads);
    if (!rest.complete) return false;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = static_cast<Sum>(-0.f);  // which changes nothing that is added
  }
  __threadfence();
  for (unsigned i = own; i <= others; ++i) add(first + i);
  return true;
}

}  // namespace aoext::cuda
