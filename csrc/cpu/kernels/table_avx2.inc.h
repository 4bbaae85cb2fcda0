// The table of an instruction set with vectors of 32 bytes. What goes by limb_sums_<it>.inc.h and segments_<it>.inc.h, AVX-VNNI
// has an instruction for: the rest it takes as AVX2 compiled it.
#pragma once

#include "cpu/kernels/vectors_avx2.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/doubled_e2m1_avx2.inc.h"
#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_i8_avx2.inc.h"
#include "cpu/kernels/gemv_i8_avx2.inc.h"
#include "cpu/kernels/gemv_int8_limbs_staged.inc.h"
#include "cpu/kernels/gemv_lut4_avx2.inc.h"
#include "cpu/kernels/gemv_planes.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {
namespace {

constexpr Kernels with_products_of_bytes(Kernels table) {
  table.gemv_limbs2_staged = &kGemvLimbsStaged<kTwoInt8Limbs>;
  table.gemv_limbs3_staged = &kGemvLimbsStaged<kThreeInt8Limbs>;
  table.gemv_e2m1_limbs2_staged = &kGemvLimbsStaged<kTwoInt8Limbs, DoubledE2m1>;
  table.gemv_e2m1_limbs3_staged = &kGemvLimbsStaged<kThreeInt8Limbs, DoubledE2m1>;
  table.gemm_int4_i8 = &segments::kGemmInt4I8<segments::DotNibbles>;
  table.gemm_segments_i8 = &segments::kGemmSegmentsI8;
  table.gemv_limb_staged = &kGemvLimbsStaged<kOneInt8Limb>;
  table.gemv_planes_limb = &kGemvPlanes<kOneInt8Limb>;
  table.gemv_planes_limbs2 = &kGemvPlanes<kTwoInt8Limbs>;
  table.gemv_planes_limbs3 = &kGemvPlanes<kThreeInt8Limbs>;
  return table;
}

}  // namespace
}  // namespace aoext::cpu
