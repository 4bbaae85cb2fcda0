// NEON, which every CPU of aarch64 has.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/products_i8_neon.inc.h"
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_neon() {
  static constexpr Kernels table = table_neon();
  return table;
}

}  // namespace aoext::cpu
