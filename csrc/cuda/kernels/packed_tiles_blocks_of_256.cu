// Kernels of packed_tiles.cuh for codes of 256 with their scales.
#include "cuda/kernels/packed_tiles_instances.cuh"

namespace aoext::cuda::packed_tiles {

template <class T>
Kernels kernels_of_blocks_of_256(Code code) {
  return kernels_among<T, Code::q2_k, Code::q3_k, Code::q4_k, Code::q5_k, Code::q6_k, Code::iq4_xs, Code::tq2_0, Code::tq1_0>(
      code);
}
template Kernels kernels_of_blocks_of_256<__nv_bfloat16>(Code);
template Kernels kernels_of_blocks_of_256<__half>(Code);

}  // namespace aoext::cuda::packed_tiles
