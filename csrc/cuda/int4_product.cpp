#include "cuda/int4_product.h"

#include "cuda/kernels/int4_any.h"

namespace aoext::cuda {

size_t int4_workspace(const Int4Linear& linear, const Plan& plan) {
  switch (plan.algorithm) {
    case Algorithm::batch: return int4_batch_workspace(linear, plan.batch);
    case Algorithm::mma: return int4_mma_workspace(linear, plan.mma);
    case Algorithm::wgmma: return int4_wgmma_workspace(linear, plan.wgmma);
    default: return 0;
  }
}

cudaError_t launch_int4(const Int4Linear& linear, const Plan& plan, void* workspace, cudaStream_t stream) {
  switch (plan.algorithm) {
    case Algorithm::ring: return launch_int4_ring(linear, plan.ring, stream);
    case Algorithm::decode: return launch_int4_decode(linear, plan.decode, stream);
    case Algorithm::batch: return launch_int4_batch(linear, plan.batch, workspace, stream);
    case Algorithm::mma: return launch_int4_mma(linear, plan.mma, workspace, stream);
    case Algorithm::wgmma: return launch_int4_wgmma(linear, plan.wgmma, workspace, stream);
    case Algorithm::any: return launch_int4_any(linear, stream);
    case Algorithm::generic: break;
  }
  return cudaErrorNotSupported;
}

}  // namespace aoext::cuda
