// scaled_wgmma.cuh for int4.
#include "cuda/kernels/sm90a/scaled_wgmma_launch.h"

namespace aoext::cuda::wgmma {

cudaError_t launch_scaled_group(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream) {
  const bool whole = scaled_kind(p).sub == 1;
  if (p.type == Element::e4m3)
    return whole ? launch_scaled<ScaledBy::group, Element::e4m3, 1>(p, c, by_chunks, stream)
                 : launch_scaled<ScaledBy::group, Element::e4m3, 4>(p, c, by_chunks, stream);
  return whole ? launch_scaled<ScaledBy::group, Element::int8, 1>(p, c, by_chunks, stream)
               : launch_scaled<ScaledBy::group, Element::int8, 4>(p, c, by_chunks, stream);
}

}  // namespace aoext::cuda::wgmma
