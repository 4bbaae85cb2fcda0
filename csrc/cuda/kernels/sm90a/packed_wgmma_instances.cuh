// Kernels of packed_wgmma.cuh by their code.
#pragma once

#include "cuda/kernels/sm90a/packed_wgmma.cuh"

namespace aoext::cuda::packed_wgmma {

// That of one of these codes, or none.
template <class T, Code... kCodes>
Kernel kernel_among(Code code) {
  Kernel found = nullptr;
  (static_cast<void>(code == kCodes && (found = packed_wgmma<T, kCodes>, true)), ...);
  return found;
}

}  // namespace aoext::cuda::packed_wgmma
