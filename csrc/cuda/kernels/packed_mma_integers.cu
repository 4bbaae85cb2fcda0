// Kernels of packed_mma.cuh for codes whose scales lie beside them.
#include "cuda/kernels/packed_mma_instances.cuh"

namespace aoext::cuda::packed_mma {

template <class T>
Kernels kernels_of_integers(Code code) {
  return kernels_among<T, Code::int2, Code::int3, Code::int5, Code::int6, Code::int7>(code);
}
template Kernels kernels_of_integers<__nv_bfloat16>(Code);
template Kernels kernels_of_integers<__half>(Code);

}  // namespace aoext::cuda::packed_mma
