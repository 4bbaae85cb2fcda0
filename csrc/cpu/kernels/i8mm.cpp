// NEON, sdot, and matrix products of bytes (smmla) and of bfloat16 (bfmmla): Neoverse V1, N2 and V2, Apple M2.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/products_i8_dotprod.inc.h"
#include "cpu/kernels/segments_bf16_neon.inc.h"
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_i8mm() {
  static constexpr Kernels table = [] {
    Kernels all = table_neon("i8mm");
    all.gemm_segments_bf16 = &segments::kGemmSegmentsBf16;
    return all;
  }();
  return table;
}

}  // namespace aoext::cpu
