// AVX-512 as in avx512.cpp: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_int4_avx512.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_avx512() {
  static constexpr SharedKernels table = [] {
    SharedKernels all = shared_by_all();
    all.gemm_int4_bf16 = &kGemmInt4Bf16;
    all.gemm_int4_codes = &kGemmInt4Codes;
    return all;
  }();
  return table;
}

}  // namespace aoext::cpu
