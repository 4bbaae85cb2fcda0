// product_any.cuh for experts. A block has the same rows of x and output channels as if one weight were for all rows, and goes
// through its rows expert by expert, with all its threads for each: most blocks have rows of one or two. Rows behind the last are
// zero.
#pragma once

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/product_any.cuh"

namespace aoext::cuda::product_any {

// For outputs, of type `output`, of kHeight rows by kWidth channels from `place` on: compute(product, place) of each expert's,
// whose M is where its rows end. of_expert(p, expert) is the product of one.
template <int kHeight, int kWidth, class Problem, class Compute>
__device__ __forceinline__ void go_through_experts(const Problem& p, Element output, Place place, Compute&& compute) {
  const int64_t end = min(place.m + kHeight, p.M);
  while (place.m < end) {
    const int expert = expert_of(p.ends, static_cast<int>(p.experts), place.m);
    if (expert == p.experts) break;
    Problem own = of_expert(p, expert);
    own.M = min(int64_t{p.ends[expert]}, end);
    compute(own, place);
    __syncthreads();  // shared memory may be written again
    place.m = own.M;
  }
  for (int64_t m = place.m + threadIdx.x / kWidth; m < end; m += blockDim.x / kWidth)
    if (const int64_t n = place.n + threadIdx.x % kWidth; n < p.N) clear(p.y, m * p.N + n, output);
}

// For outputs of a block of compute_tile, and of one of compute_rows.
template <class Operands, class Problem>
__device__ __forceinline__ void compute_tile_of_experts(const Problem& p, Element output) {
  go_through_experts<kTile, kTile>(p, output, tile_place(p.N),
                                   [](const Problem& own, const Place& place) { compute_tile(Operands(own), place); });
}
template <class Operands, class Problem>
__device__ __forceinline__ void compute_rows_of_experts(const Problem& p, Element output) {
  constexpr int kBlockM = Operands::kBlockM, kBlockN = Operands::kBlockN;
  go_through_experts<kBlockM, kBlockN>(p, output, rows_place<Operands>(p.M, p.N),
                                       [](const Problem& own, const Place& place) { compute_rows(Operands(own), place); });
}

// Rows of x up to which reading w again costs less than tiles do, which have rows of more experts than they are worth.
template <class Operands>
int64_t few_rows_of_experts(int64_t experts) {
  return 2 * Operands::kBlockM * experts;
}

}  // namespace aoext::cuda::product_any
