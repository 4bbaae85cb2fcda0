// NEON and its matrix products, as in i8mm.cpp: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/gemm_bf16_mmla.inc.h"
#include "cpu/kernels/products_i8_dotprod.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_i8mm() {
  static constexpr SharedKernels table = [] {
    SharedKernels all = shared_by_all();
    all.gemm_int4_codes = &mmla::kGemmInt4Codes;
    return all;
  }();
  return table;
}

}  // namespace aoext::cpu
