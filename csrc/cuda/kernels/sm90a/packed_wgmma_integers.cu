// Kernels of packed_wgmma.cuh for codes whose scales lie beside them.
#include "cuda/kernels/sm90a/packed_wgmma_instances.cuh"

namespace aoext::cuda::packed_wgmma {

template <class T>
Kernel kernel_of_integers(Code code) {
  return kernel_among<T, Code::int2, Code::int3, Code::int5, Code::int6, Code::int7>(code);
}
template Kernel kernel_of_integers<__nv_bfloat16>(Code);
template Kernel kernel_of_integers<__half>(Code);

}  // namespace aoext::cuda::packed_wgmma
