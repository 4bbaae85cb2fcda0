// scaled_wgmma.cuh for w of 8 bits in blocks of 64 rows or more.
#include "cuda/kernels/sm90a/scaled_wgmma_launch.h"

namespace aoext::cuda::wgmma {

cudaError_t launch_scaled_tile(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream) {
  if (p.type == Element::e4m3) return launch_scaled<ScaledBy::tile, Element::e4m3, 1>(p, c, by_chunks, stream);
  return launch_scaled<ScaledBy::tile, Element::int8, 1>(p, c, by_chunks, stream);
}

}  // namespace aoext::cuda::wgmma
