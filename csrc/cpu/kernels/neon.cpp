// NEON, which every CPU of aarch64 has.
#include "cpu/kernels/table_neon.inc.h"

namespace aoext::cpu {

const Kernels& kernels_neon() {
  static constexpr Kernels table = table_neon("neon");
  return table;
}

}  // namespace aoext::cpu
