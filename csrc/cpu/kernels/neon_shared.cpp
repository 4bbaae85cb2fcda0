// NEON: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_neon() {
  static constexpr SharedKernels table = shared_by_all();
  return table;
}

}  // namespace aoext::cpu
