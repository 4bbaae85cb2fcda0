// Kernels of packed_mma.cuh for codes of 32 with their scale.
#include "cuda/kernels/packed_mma_instances.cuh"

namespace aoext::cuda::packed_mma {

template <class T>
Kernels kernels_of_blocks_of_32(Code code) {
  return kernels_among<T, Code::q4_0, Code::q4_1, Code::q5_0, Code::q5_1, Code::q8_0, Code::iq4_nl>(code);
}
template Kernels kernels_of_blocks_of_32<__nv_bfloat16>(Code);
template Kernels kernels_of_blocks_of_32<__half>(Code);

}  // namespace aoext::cuda::packed_mma
