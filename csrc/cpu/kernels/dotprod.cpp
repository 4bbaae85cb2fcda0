// NEON and its products of four bytes (sdot): Neoverse N1, Apple M1.
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_dotprod() {
  static constexpr Kernels table = table_neon("dotprod");
  return table;
}

}  // namespace aoext::cpu
