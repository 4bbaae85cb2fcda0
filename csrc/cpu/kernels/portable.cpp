// Any CPU that the compiler's baseline serves.
#include "cpu/kernels/vectors_portable.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/gemm_i8_portable.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_portable() {
  static constexpr Kernels table = of_library(table_of_all(&kGemmI8<kKC>));
  return table;
}

}  // namespace aoext::cpu
