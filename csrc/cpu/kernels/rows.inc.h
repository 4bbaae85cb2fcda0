// All kernels and their table. Included once per instruction set by a translation unit that sets the flags and defines
//
//   AOEXT_KERNELS, AOEXT_NAME   the table's function and the name that AOEXT_CPU_ISA takes
//   AOEXT_FLOATS                floats in a vector
//   AOEXT_DEPTH                 floats of a weight row in a block of tiles.inc.h
//   AOEXT_AVX512, AOEXT_AVX2    which intrinsics there are, one or none of the two
//   AOEXT_AVX_VNNI              products of bytes beside AVX2's
//   AOEXT_AMX                   AMX's beside AVX-512's
#include "cpu/kernels/vectors.inc.h"

#include "cpu/kernels/formats.inc.h"

#include "cpu/kernels/few_rows_8bit.inc.h"
#include "cpu/kernels/few_rows_int4.inc.h"
#ifdef AOEXT_AVX2
#include "cpu/kernels/staged_planes.inc.h"
#endif
#include "cpu/kernels/quantize.inc.h"
#include "cpu/kernels/tiles.inc.h"
#ifdef AOEXT_AMX
#include "cpu/kernels/amx.inc.h"
#elif defined(AOEXT_AVX512)
#include "cpu/kernels/lanes.inc.h"
#endif

namespace aoext::cpu {

const Kernels& AOEXT_KERNELS() {
  static constexpr Kernels table{
      AOEXT_NAME,        to_float,       columns_to_float, from_float,  dequantize_int4, has_wide_zero_points,
      split_zero_points, group_sums,     &kTilesF32,       kI8,         kBf16,           kBf16Int4,
      kLimbTiles,        kLimbTilesInt4, &kValuesF32,      kValuesBf16, arrange_int4,    dot_int4,
      kPlanes,           kFinePlanes,    kPlaneTiles,      kDotI8,      scale_row,       quantize_row,
  };
  return table;
}

}  // namespace aoext::cpu
