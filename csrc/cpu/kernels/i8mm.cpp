// NEON, sdot, and matrix products of bytes (smmla) and of bfloat16 (bfmmla): Neoverse V1, N2 and V2, Apple M2.
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_i8mm() {
  static constexpr Kernels table = table_neon("i8mm");
  return table;
}

}  // namespace aoext::cpu
