// Which expert a row of x belongs to: for blocks that have few rows. (Where tiles of rows are numbered, tile_scheduler.h.)
#pragma once

#include <cstdint>

#include "cuda/kernels/int4.h"
#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda {

// The first expert whose rows end behind row m, or as many as there are. Each warp looks for itself; lanes are threadIdx.x % 32.
__device__ __forceinline__ int expert_of(const GroupedInt4Linear& p, int64_t m) {
  constexpr int kOwn = 4;  // experts of a lane, whose ends are read at once
  const int experts = static_cast<int>(p.experts), lane = threadIdx.x % 32;
  for (int first = 0; first < experts; first += 32 * kOwn) {
    const int own = first + lane * kOwn;
    int found = kOwn;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i)
      if (own + i < experts && p.ends[own + i] > m) found = i;
    const unsigned lanes = __ballot_sync(~0u, found < kOwn);
    if (lanes == 0) continue;
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    return first + from * kOwn + __shfl_sync(~0u, found, from);
  }
  return experts;
}

// The product of an expert's weight: what it is of x and y, and how many rows it has, stays as it is.
__device__ __forceinline__ Int4Linear of_expert(const GroupedInt4Linear& p, int64_t expert) {
  const auto behind = [&](const void* first, int64_t count, Element type) -> const void* {
    return static_cast<const char*>(first) + expert * count * (type == Element::fp32 ? 4 : 2);
  };
  Int4Linear own = p;
  own.weight += expert * (p.N * (p.K / 2));
  own.scale = behind(p.scale, p.K / p.group_size * p.N, p.scale_type);
  own.zero_point = behind(p.zero_point, p.K / p.group_size * p.N, p.scale_type);
  if (p.bias != nullptr) own.bias = behind(p.bias, p.N, p.bias_type);
  return own;
}

}  // namespace aoext::cuda
