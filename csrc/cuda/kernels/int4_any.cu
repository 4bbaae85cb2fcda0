#include "cuda/kernels/int4_any.h"

#include "cuda/kernels/int4_any.cuh"

namespace aoext::cuda {
namespace {

using int4_any::Operands;
using product_any::kRowsThreads;
using product_any::kTileThreads;

template <class X>
__global__ void __launch_bounds__(kTileThreads, 2) int4_any_tile(const __grid_constant__ Int4Linear p) {
  product_any::walk_tile(Operands<X>(p));
}

template <class X>
__global__ void __launch_bounds__(kRowsThreads) int4_any_rows(const __grid_constant__ Int4Linear p) {
  product_any::walk_rows(Operands<X>(p));
}

template <class X>
cudaError_t launch(const Int4Linear& p, cudaStream_t stream) {
  return product_any::launch<Operands<X>>(int4_any_tile<X>, int4_any_rows<X>, Operands<X>::kBlockM, p, stream);
}

}  // namespace

cudaError_t launch_int4_any(const Int4Linear& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch<__half>(p, stream);
    default: return launch<float>(p, stream);
  }
}

}  // namespace aoext::cuda
