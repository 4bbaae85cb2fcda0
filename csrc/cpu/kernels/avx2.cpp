// AVX2, FMA and F16C.
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/limb_sums_avx2.inc.h"
#include "cpu/kernels/segments_avx2.inc.h"
#include "cpu/kernels/table_avx2.inc.h"

namespace aoext::cpu {

const Kernels& kernels_avx2() {
  static constexpr Kernels table = table_avx2();
  return table;
}

}  // namespace aoext::cpu
