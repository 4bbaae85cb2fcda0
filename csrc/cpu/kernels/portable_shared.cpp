// Any CPU that the compiler's baseline serves: what two libraries share (kernels.h).
#include "cpu/kernels/vectors_portable.inc.h"

#include "cpu/kernels/shared.inc.h"

#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const SharedKernels& shared_kernels_portable() {
  static constexpr SharedKernels table = shared_by_all();
  return table;
}

}  // namespace aoext::cpu
