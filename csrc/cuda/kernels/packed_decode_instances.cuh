// Kernels of packed_decode.cuh by their code.
#pragma once

#include "cuda/kernels/packed_decode.cuh"

namespace aoext::cuda::packed_decode {

// That of one of these codes, or none.
template <class T, Code... kCodes>
Kernel kernel_among(Code code) {
  Kernel found = nullptr;
  (static_cast<void>(code == kCodes && (found = packed_decode<T, kCodes>, true)), ...);
  return found;
}

}  // namespace aoext::cuda::packed_decode
