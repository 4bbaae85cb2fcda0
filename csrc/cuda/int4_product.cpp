#include "cuda/int4_product.h"

#include "cuda/kernels/int4_any.h"

namespace aoext::cuda {

size_t int4_workspace(const Int4Linear& p, const Int4Plan& plan) {
  return std::visit(
      Overloaded{[](const auto&) { return size_t{0}; }, [&](const BatchConfig& c) { return int4_batch_workspace(p, c); },
                 [&](const MmaConfig& c) { return int4_mma_workspace(p, c); },
                 [&](const Int4WgmmaConfig& c) { return int4_wgmma_workspace(p, c); }},
      plan.kernel);
}

cudaError_t launch_int4(const Int4Linear& p, const Int4Plan& plan, void* workspace, cudaStream_t stream) {
  return std::visit(
      Overloaded{[](const Generic&) { return cudaErrorNotSupported; }, [&](const Int4Any&) { return launch_int4_any(p, stream); },
                 [&](const RingConfig& c) { return launch_int4_ring(p, c, stream); },
                 [&](const DecodeConfig& c) { return launch_int4_decode(p, c, stream); },
                 [&](const BatchConfig& c) { return launch_int4_batch(p, c, workspace, stream); },
                 [&](const Int4WgmmaConfig& c) { return launch_int4_wgmma(p, c, workspace, stream); },
                 [&](const MmaConfig& c) { return launch_int4_mma(p, c, workspace, stream); }},
      plan.kernel);
}

}  // namespace aoext::cuda
