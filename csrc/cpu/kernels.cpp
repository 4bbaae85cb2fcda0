// The table of the instruction set that runs.
#include "cpu/isa.h"

namespace aoext::cpu {
namespace {

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
#ifdef __x86_64__
    case Isa::amx: return kernels_amx();
    case Isa::avx512: return kernels_avx512();
    case Isa::avxvnni: return kernels_avxvnni();
    case Isa::avx2: return kernels_avx2();
#endif
#ifdef __aarch64__
    case Isa::i8mm: return kernels_i8mm();
    case Isa::dotprod: return kernels_dotprod();
    case Isa::neon: return kernels_neon();
#endif
    default: return kernels_portable();
  }
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& table = kernels_of(isa());
  return table;
}

}  // namespace aoext::cpu
