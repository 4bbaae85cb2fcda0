// Kernels of packed_wgmma.cuh for codes of 32 with their scale.
#include "cuda/kernels/sm90a/packed_wgmma_instances.cuh"

namespace aoext::cuda::packed_wgmma {

template <class T>
Kernel kernel_of_blocks_of_32(Code code) {
  return kernel_among<T, Code::q4_0, Code::q4_1, Code::q5_0, Code::q5_1, Code::q8_0, Code::iq4_nl>(code);
}
template Kernel kernel_of_blocks_of_32<__nv_bfloat16>(Code);
template Kernel kernel_of_blocks_of_32<__half>(Code);

}  // namespace aoext::cuda::packed_wgmma
