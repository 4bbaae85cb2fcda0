// Pairs of token and expert in the order of experts, by one block. Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

struct SortByExpert {
  const void* expert;  // [pairs] of int32, or int64 where it is wide; ids outside [0, experts) have no expert
  int64_t* order;      // [pairs], stable; those without an expert come last
  int64_t* place;      // [pairs], where each is in that order
  int32_t* offsets;    // [experts], where the pairs of each end
  int pairs, experts;
  bool wide;
};

// As many as one block sorts sooner than several kernels would.
constexpr int64_t kMostSortedPairs = int64_t{1} << 17;

cudaError_t launch_sort_by_expert(const SortByExpert& p, cudaStream_t stream);

}  // namespace aoext::cuda
