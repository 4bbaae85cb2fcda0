// NEON, which every CPU of aarch64 has.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/gemm_i8_portable.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {

const Kernels& kernels_neon() {
  constexpr int64_t kKC = 256;  // floats
  static constexpr Kernels table = table_of_all<kKC>("neon", &kGemmI8<kKC>);
  return table;
}

}  // namespace aoext::cpu
