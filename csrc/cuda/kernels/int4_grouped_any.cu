// int4_any.cuh for experts. A block has the same rows of x and output channels as if one weight were for all rows, and goes
// through its rows expert by expert, with all its threads for each: most blocks have rows of one or two. Rows behind the last are
// zero.
#include "cuda/kernels/int4_grouped_any.h"

#include "cuda/kernels/int4_any.cuh"

namespace aoext::cuda {
namespace {

using int4_any::Operands;
using product_any::kRowsThreads;
using product_any::kTileThreads;
using product_any::Place;

// The first expert whose rows end behind row m, or as many as there are. Each warp looks for itself.
__device__ __forceinline__ int64_t expert_of(const GroupedInt4Linear& p, int64_t m) {
  for (int64_t first = 0;; first += 32) {
    const int64_t mine = first + threadIdx.x % 32;
    const unsigned behind = __ballot_sync(~0u, mine >= p.experts || p.ends[mine] > m);
    if (behind != 0) return first + __ffs(static_cast<int>(behind)) - 1;
  }
}

// The product of an expert's weight, of rows that end before `end`.
__device__ __forceinline__ Int4Linear of_expert(const GroupedInt4Linear& p, int64_t expert, int64_t end) {
  const auto behind = [&](const void* first, int64_t count, Element type) -> const void* {
    return static_cast<const char*>(first) + expert * count * (type == Element::fp32 ? 4 : 2);
  };
  Int4Linear own = p;
  own.M = end;
  own.weight += expert * (p.N * (p.K / 2));
  own.scale = behind(p.scale, p.K / p.group_size * p.N, p.scale_type);
  own.zero_point = behind(p.zero_point, p.K / p.group_size * p.N, p.scale_type);
  if (p.bias != nullptr) own.bias = behind(p.bias, p.N, p.bias_type);
  return own;
}

// For outputs of kHeight rows by kWidth channels from `place` on: walk(Operands, Place) of each expert's.
template <class X, int kHeight, int kWidth, class Walk>
__device__ __forceinline__ void for_each_expert(const GroupedInt4Linear& p, Place place, Walk&& walk) {
  const int64_t end = min(place.m + kHeight, p.M);
  while (place.m < end) {
    const int64_t expert = expert_of(p, place.m);
    if (expert == p.experts) break;
    const Int4Linear own = of_expert(p, expert, min(int64_t{p.ends[expert]}, end));
    walk(Operands<X>(own), place);
    __syncthreads();  // shared memory may be written again
    place.m = own.M;
  }
  for (int64_t m = place.m + threadIdx.x / kWidth; m < end; m += blockDim.x / kWidth)
    if (const int64_t n = place.n + threadIdx.x % kWidth; n < p.N) static_cast<X*>(p.y)[m * p.N + n] = rounded<X>(0);
}

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_grouped_any_tile(const __grid_constant__ GroupedInt4Linear p) {
  using product_any::kTile;
  for_each_expert<X, kTile, kTile>(p, product_any::tile_place(p.N),
                                   [](const Operands<X>& o, const Place& place) { product_any::walk_tile(o, place); });
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_grouped_any_rows(const __grid_constant__ GroupedInt4Linear p) {
  using O = Operands<X>;
  for_each_expert<X, O::kBlockM, O::kBlockN>(p, product_any::rows_place<O>(p.M, p.N),
                                             [](const O& o, const Place& place) { product_any::walk_rows(o, place); });
}

template <class X>
cudaError_t launch(const GroupedInt4Linear& p, cudaStream_t stream) {
  using O = Operands<X>;
  const int64_t few_rows = 2 * O::kBlockM * p.experts;  // so that a tile has rows of more experts than it is worth
  return product_any::launch<O>(int4_grouped_any_tile<X>, int4_grouped_any_rows<X>, few_rows, p, stream);
}

}  // namespace

cudaError_t launch_int4_grouped_any(const GroupedInt4Linear& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch<__half>(p, stream);
    default: return launch<float>(p, stream);
  }
}

}  // namespace aoext::cuda
