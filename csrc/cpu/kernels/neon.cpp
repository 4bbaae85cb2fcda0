// NEON, which every CPU of aarch64 has.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/products_i8_neon.inc.h"
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_neon() {
  static constexpr Kernels table = [] {
    Kernels all = with_products_of_bytes(table_of_all(nullptr));
    all.gemv_lut4_f32 = &kGemvLut4Neon;
    return of_library(all);
  }();
  return table;
}

}  // namespace aoext::cpu
