// scaled_wgmma.cuh for w of 8 bits with scales for each row, and 32 k.
#include "cuda/kernels/sm90a/scaled_wgmma_launch.h"

namespace aoext::cuda::wgmma {

cudaError_t launch_scaled_row(const ScaledLinear& p, const WgmmaConfig& c, cudaStream_t stream) {
  if (p.type == Element::e4m3) return launch_scaled<ScaledBy::row, Element::e4m3, 4>(p, c, nullptr, stream);
  return launch_scaled<ScaledBy::row, Element::int8, 4>(p, c, nullptr, stream);
}

}  // namespace aoext::cuda::wgmma
