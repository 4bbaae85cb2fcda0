// Kernels of packed_tiles.cuh by their code.
#pragma once

#include "cuda/kernels/packed_tiles.cuh"

namespace aoext::cuda::packed_tiles {

// Those of one of these codes, or none.
template <class T, Code... kCodes>
Kernels kernels_among(Code code) {
  Kernels found{};
  (static_cast<void>(code == kCodes && (found = {packed_tiles<T, kCodes>, packed_tiles_of_experts<T, kCodes>}, true)), ...);
  return found;
}

}  // namespace aoext::cuda::packed_tiles
