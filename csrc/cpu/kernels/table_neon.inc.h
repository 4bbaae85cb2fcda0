// The table of NEON's instruction sets. What goes by products_i8_<it>.inc.h, sdot makes faster: the rest CPUs that have it take
// as NEON compiled it.
#pragma once

#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/gemm_i8_neon.inc.h"
#include "cpu/kernels/gemv_lut4_neon.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {
namespace {

constexpr Kernels with_products_of_bytes(Kernels table) {
  table.gemm_i8 = &kGemmI8<4 * kKC>;
  table.gemv_i8 = &kGemvI8;
  table.gemm_int4_i8 = &segments::kGemmInt4I8<segments::DotNibbles, segments::SignedNibbles>;
  table.gemm_segments_i8 = &segments::kGemmSegmentsI8;
  return table;
}

}  // namespace
}  // namespace aoext::cpu
