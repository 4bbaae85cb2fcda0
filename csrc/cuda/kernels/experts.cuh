// Which rows of x an expert has, and which of its rows are a block's: of a grouped product, whose rows are sorted by expert.
// Where they end stands in device memory. Ends that fall, or lie outside x, leave experts without rows; rows behind the last
// expert count as one expert more. By whole warps, each for itself.
#pragma once

#include <cstdint>

#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// What lies behind so many elements; null stays null.
__device__ __forceinline__ const void* behind(const void* first, int64_t count, Element type) {
  return first == nullptr ? nullptr : static_cast<const char*>(first) + count * bytes_of(type);
}

// Output i becomes zero.
__device__ __forceinline__ void clear(void* y, int64_t i, Element type) {
  if (bytes_of(type) == 4)
    static_cast<uint32_t*>(y)[i] = 0;
  else
    static_cast<uint16_t*>(y)[i] = 0;
}

// Neighbouring experts of a lane: where their rows end, and how many tiles of rows lie before them and all that follow.
struct LaneExperts {
  static constexpr int kCount = 4;
  int first;        // which
  int begin;        // of the first one's rows
  int end[kCount];  // of the rows of each
  int first_tile[kCount + 1];
};

// Where the rows of all experts end, and their tiles.
struct AllExperts {
  int end, tiles;
};

// body(LaneExperts) in rounds of as many experts as the warp has; those beyond the last have no rows.
template <class Body>
__device__ __forceinline__ AllExperts for_each_expert(const int32_t* ends, int experts, int rows, int block_m, Body&& body) {
  constexpr int kCount = LaneExperts::kCount;
  const int lane = threadIdx.x % 32;
  AllExperts before{};
  for (int first = 0; first < experts; first += 32 * kCount) {
    LaneExperts own;
    own.first = first + lane * kCount;
#pragma unroll
    for (int i = 0; i < kCount; ++i) own.end[i] = own.first + i < experts ? min(ends[own.first + i], rows) : 0;
#pragma unroll
    for (int i = 1; i < kCount; ++i) own.end[i] = max(own.end[i], own.end[i - 1]);
    int largest = max(own.end[kCount - 1], before.end);
    for (int distance = 1; distance < 32; distance *= 2) largest = max(largest, __shfl_up_sync(~0u, largest, distance));
    own.begin = __shfl_up_sync(~0u, largest, 1);
    if (lane == 0) own.begin = before.end;
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      own.end[i] = max(own.end[i], own.begin);
      own.first_tile[i] = tiles;
      tiles += (own.end[i] - (i == 0 ? own.begin : own.end[i - 1]) + block_m - 1) / block_m;
    }
    int through = tiles;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int lower = __shfl_up_sync(~0u, through, distance);
      if (lane >= distance) through += lower;
    }
    own.first_tile[kCount] = before.tiles + through;
#pragma unroll
    for (int i = 0; i < kCount; ++i) own.first_tile[i] += before.tiles + through - tiles;
    body(own);
    before = {__shfl_sync(~0u, largest, 31), __shfl_sync(~0u, own.first_tile[kCount], 31)};
  }
  return before;
}

// Rows [begin, end) of x; none behind the last tile.
struct ExpertRows {
  int expert, begin, end;
};

// Those of a tile of block_m rows, of all that experts have in a row.
__device__ __forceinline__ ExpertRows rows_of_tile(const int32_t* ends, int experts, int rows, int block_m, int tile) {
  ExpertRows found{-1, 0, 0};
  const AllExperts all = for_each_expert(ends, experts, rows, block_m, [&](const LaneExperts& own) {
#pragma unroll
    for (int i = 0; i < LaneExperts::kCount; ++i)
      if (own.first_tile[i] <= tile && tile < own.first_tile[i + 1]) {
        const int begin = (i == 0 ? own.begin : own.end[i - 1]) + (tile - own.first_tile[i]) * block_m;
        found = {own.first + i, begin, min(begin + block_m, own.end[i])};
      }
  });
  if (tile >= all.tiles) {
    const int64_t begin = all.end + int64_t{tile - all.tiles} * block_m;
    const int first = static_cast<int>(min(begin, int64_t{rows}));
    return {experts, first, static_cast<int>(min(begin + block_m, int64_t{rows}))};
  }
  const int lane = __ffs(static_cast<int>(__ballot_sync(~0u, found.expert >= 0))) - 1;
  return {__shfl_sync(~0u, found.expert, lane), __shfl_sync(~0u, found.begin, lane), __shfl_sync(~0u, found.end, lane)};
}

// The first expert whose rows end behind row m, or as many as there are.
__device__ __forceinline__ int expert_of(const int32_t* ends, int experts, int64_t m) {
  constexpr int kCount = LaneExperts::kCount;
  for (int first = 0; first < experts; first += 32 * kCount) {
    const int own = first + threadIdx.x % 32 * kCount;
    int found = kCount;
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i)
      if (own + i < experts && ends[own + i] > m) found = i;
    const unsigned lanes = __ballot_sync(~0u, found < kCount);
    if (lanes == 0) continue;
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    return first + lane * kCount + __shfl_sync(~0u, found, lane);
  }
  return experts;
}

}  // namespace aoext::cuda
