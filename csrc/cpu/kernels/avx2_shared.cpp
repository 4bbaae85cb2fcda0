// AVX2, FMA and F16C: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_avx2() {
  static constexpr SharedKernels table = shared_by_all();
  return table;
}

}  // namespace aoext::cpu
