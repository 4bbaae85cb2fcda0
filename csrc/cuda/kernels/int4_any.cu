#include "cuda/kernels/int4_any.h"

#include "cuda/kernels/experts_any.cuh"
#include "cuda/kernels/int4_any.cuh"
#include "cuda/kernels/int4_of_expert.cuh"

namespace aoext::cuda {
namespace {

using int4_any::Operands;
using product_any::kRowsThreads;
using product_any::kTileThreads;

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_any_tile(const __grid_constant__ Int4Linear p) {
  product_any::compute_tile(Operands<X>(p));
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_any_rows(const __grid_constant__ Int4Linear p) {
  product_any::compute_rows(Operands<X>(p));
}

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_any_tile_of_experts(const __grid_constant__ Int4Linear p) {
  product_any::compute_tile_of_experts<Operands<X>>(p, p.type);
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_any_rows_of_experts(const __grid_constant__ Int4Linear p) {
  product_any::compute_rows_of_experts<Operands<X>>(p, p.type);
}

template <class X>
cudaError_t launch_typed(const Int4Linear& p, cudaStream_t stream) {
  using O = Operands<X>;
  if (p.experts == 0) return product_any::launch<O>(int4_any_tile<X>, int4_any_rows<X>, O::kBlockM, p, stream);
  return product_any::launch<O>(int4_any_tile_of_experts<X>, int4_any_rows_of_experts<X>,
                                product_any::few_rows_of_experts<O>(p.experts), p, stream);
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
