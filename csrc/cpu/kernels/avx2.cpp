// AVX2, FMA and F16C.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/limb_sums_avx2.inc.h"
#include "cpu/kernels/products_of_codes_avx2.inc.h"

#include "cpu/kernels/gemv_lut4_i16_avx2.inc.h"
#include "cpu/kernels/gemv_row_avx2.inc.h"
#include "cpu/kernels/segments_avx2.inc.h"
#include "cpu/kernels/table_avx2.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avx2() {
  static constexpr Kernels table = [] {
    Kernels all = table_of_all(&kGemmI8<2 * kKC>);
    all.gemv_lut4_f32 = &kGemvLut4Avx2;
    all.gemv_lut4_i16 = &kGemvLut4I16;
    all.gemv_i8 = &kGemvI8;
    all.gemv_row_limb = &kGemvRow<kOneInt8Limb>;
    all.gemv_row_limbs2 = &kGemvRow<kTwoInt8Limbs>;
    all.gemv_row_limbs3 = &kGemvRow<kThreeInt8Limbs>;
    return of_library(with_products_of_bytes(all));
  }();
  return table;
}

}  // namespace aoext::cpu
