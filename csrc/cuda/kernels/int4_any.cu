#include "cuda/kernels/int4_any.h"

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/int4_any.cuh"
#include "cuda/kernels/int4_of_expert.cuh"

namespace aoext::cuda {
namespace {

using int4_any::Operands;
using product_any::kRowsThreads;
using product_any::kTileThreads;
using product_any::Place;

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_any_tile(const __grid_constant__ Int4Linear p) {
  product_any::compute_tile(Operands<X>(p));
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_any_rows(const __grid_constant__ Int4Linear p) {
  product_any::compute_rows(Operands<X>(p));
}

// With experts a block has the same rows of x and output channels as if one weight were for all rows, and goes through its rows
// expert by expert, with all its threads for each: most blocks have rows of one or two. Rows behind the last are zero.

// For outputs of kHeight rows by kWidth channels from `place` on: compute(Operands, Place) of each expert's.
template <class X, int kHeight, int kWidth, class Compute>
__device__ __forceinline__ void go_through_experts(const Int4Linear& p, Place place, Compute&& compute) {
  const int64_t end = min(place.m + kHeight, p.M);
  while (place.m < end) {
    const int expert = expert_of(p.ends, static_cast<int>(p.experts), place.m);
    if (expert == p.experts) break;
    Int4Linear own = of_expert(p, expert);
    own.M = min(int64_t{p.ends[expert]}, end);
    compute(Operands<X>(own), place);
    __syncthreads();  // shared memory may be written again
    place.m = own.M;
  }
  for (int64_t m = place.m + threadIdx.x / kWidth; m < end; m += blockDim.x / kWidth)
    if (const int64_t n = place.n + threadIdx.x % kWidth; n < p.N) static_cast<X*>(p.y)[m * p.N + n] = rounded<X>(0);
}

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_any_tile_of_experts(const __grid_constant__ Int4Linear p) {
  using product_any::kTile;
  go_through_experts<X, kTile, kTile>(p, product_any::tile_place(p.N),
                                      [](const Operands<X>& o, const Place& place) { product_any::compute_tile(o, place); });
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_any_rows_of_experts(const __grid_constant__ Int4Linear p) {
  using O = Operands<X>;
  go_through_experts<X, O::kBlockM, O::kBlockN>(p, product_any::rows_place<O>(p.M, p.N),
                                                [](const O& o, const Place& place) { product_any::compute_rows(o, place); });
}

template <class X>
cudaError_t launch_typed(const Int4Linear& p, cudaStream_t stream) {
  using O = Operands<X>;
  if (p.experts == 0) return product_any::launch<O>(int4_any_tile<X>, int4_any_rows<X>, O::kBlockM, p, stream);
  const int64_t few_rows = 2 * O::kBlockM * p.experts;  // so that a tile has rows of more experts than it is worth
  return product_any::launch<O>(int4_any_tile_of_experts<X>, int4_any_rows_of_experts<X>, few_rows, p, stream);
}

}  // namespace

cudaError_t KernelOf<Int4Any>::launch(const Int4Linear& p, const Int4Any&, void* /*workspace*/, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_typed<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_typed<__half>(p, stream);
    default: return launch_typed<float>(p, stream);
  }
}

}  // namespace aoext::cuda
