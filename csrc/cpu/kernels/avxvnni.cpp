// AVX2, FMA, F16C and AVX-VNNI: products of bytes in vectors of 32.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/limb_sums_avxvnni.inc.h"
#include "cpu/kernels/products_of_codes_vnni.inc.h"
#include "cpu/kernels/segments_vnni.inc.h"
#include "cpu/kernels/table_avx2.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avxvnni() {
  static const Kernels table = of_library(with_products_of_bytes(kernels_avx2()));
  return table;
}

}  // namespace aoext::cpu
