// AVX-512 and AMX as in amx.cpp: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_int4_amx.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_amx() {
  static constexpr SharedKernels table = [] {
    SharedKernels all = shared_by_all();
    all.gemm_int4_bf16 = &kGemmInt4Bf16;
    return all;
  }();
  return table;
}

}  // namespace aoext::cpu
