// Kernels of packed_mma.cuh by their code.
#pragma once

#include "cuda/kernels/packed_mma.cuh"

namespace aoext::cuda::packed_mma {

// Those of one of these codes, or none.
template <class T, Code... kCodes>
Kernels kernels_among(Code code) {
  Kernels found{};
  (static_cast<void>(code == kCodes &&
                     (found = {packed_mma<T, kCodes, 1>, packed_mma<T, kCodes, 2>, packed_mma_of_experts<T, kCodes>}, true)),
   ...);
  return found;
}

}  // namespace aoext::cuda::packed_mma
