// AVX2, FMA and F16C.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/limb_sums_avx2.inc.h"
#include "cpu/kernels/segments_avx2.inc.h"
#include "cpu/kernels/table_avx2.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avx2() {
  static constexpr Kernels table = [] {
    Kernels all = table_of_all(&kGemmI8<2 * kKC>);
    all.gemv_lut4_f32 = &kGemvLut4Avx2;
    all.gemv_i8 = &kGemvI8;
    return of_library(with_products_of_bytes(all));
  }();
  return table;
}

}  // namespace aoext::cpu
