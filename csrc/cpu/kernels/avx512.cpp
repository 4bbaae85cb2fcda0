// AVX-512 F, BW, DQ, VL, VBMI, VNNI and BF16.
#include "cpu/kernels/vectors_avx512.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/e4m3.inc.h"
#include "cpu/kernels/gemm_bf16_limbs_avx512.inc.h"
#include "cpu/kernels/gemm_blockwise_avx512.inc.h"
#include "cpu/kernels/gemm_int4_avx512.inc.h"
#include "cpu/kernels/gemv_8bit_bf16_avx512.inc.h"
#include "cpu/kernels/gemv_blockwise_bf16_avx512.inc.h"
#include "cpu/kernels/gemv_i8_avx512.inc.h"
#include "cpu/kernels/gemv_int8_limbs_avx512.inc.h"
#include "cpu/kernels/gemv_int8_limbs_staged.inc.h"
#include "cpu/kernels/gemv_row_avx512.inc.h"
#include "cpu/kernels/limb_sums_avx512.inc.h"
#include "cpu/kernels/products_of_codes_vnni.inc.h"
#include "cpu/kernels/segments_avx512.inc.h"

namespace aoext::cpu {
namespace {

// AMX has none of its own.
void add_products_of_codes_in_planes(Kernels& all) {
  all.gemv_row_limb = &kGemvRow<kOneInt8Limb>;
  all.gemv_row_limbs2 = &kGemvRow<kTwoInt8Limbs>;
  all.gemv_row_limbs3 = &kGemvRow<kThreeInt8Limbs>;
  all.gemv_planes_limb = &kGemvPlanes<kOneInt8Limb>;
  all.gemv_planes_limbs2 = &kGemvPlanes<kTwoInt8Limbs>;
  all.gemv_planes_limbs3 = &kGemvPlanes<kThreeInt8Limbs>;
}

}  // namespace

const Kernels& kernels_avx512() {
  static const Kernels table = [] {
    Kernels all = table_of_all(&kGemmI8);
    all.gemm_bf16 = &kGemmBf16;
    all.gemm_bf16_limbs = &kGemmBf16Limbs;
    all.gemm_int4_bf16_columns = &kGemmInt4Bf16;
    all.gemm_int4_codes = &kGemmInt4Codes;
    all.gemm_int4_codes_limbs = &kGemmInt4CodesLimbs;
    all.gemv_8bit_bf16 = &kGemv8BitBf16;
    all.gemm_8bit_bf16_columns = &kGemmOfScaled<pack_8bit_scaled>;
    all.gemm_lut4_bf16_columns = &kGemmOfScaled<pack_lut4_scaled>;
    all.gemm_8bit_groups = &kGemm8BitGroups;
    all.gemm_8bit_groups_limbs = &kGemm8BitGroupsLimbs;
    all.gemm_lut4_groups = &kGemmLut4Groups;
    all.gemm_lut4_groups_limbs = &kGemmLut4GroupsLimbs;
    all.gemv_blockwise_bf16 = &kGemvBlockwiseBf16;
    all.gemv_lut4_bf16 = &kGemvLut4Bf16;
    all.gemv_i8 = &kGemvI8;
    all.gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs, kIntoFirstCache>;
    all.gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs, kIntoFirstCache>;
    all.gemm_int4_i8 = &segments::kGemmInt4I8<segments::DotNibbles>;
    all.gemm_segments_i8 = &segments::kGemmSegmentsI8;
    all.gemm_segments_bf16 = &segments::kGemmSegmentsBf16;
    all.gemv_limb = &kGemvLimbs<kOneInt8Limb, kIntoFirstCache>;
    all.gemv_limb_staged = &kGemvLimbsStaged<kOneInt8Limb>;
    add_products_of_codes_in_planes(all);
    return of_library(all);
  }();
  return table;
}

const Kernels& kernels_avx512_beside_amx() {
  static const Kernels table = [] {
    Kernels all = table_of_all(nullptr);
    all.gemm_8bit_groups = &kGemm8BitGroups;
    all.gemm_8bit_groups_limbs = &kGemm8BitGroupsLimbs;
    all.gemv_i8 = &kGemvI8;
    all.gemm_int4_i8 = &segments::kGemmInt4I8<segments::DotNibbles>;
    all.gemm_segments_i8 = &segments::kGemmSegmentsI8;
    all.gemm_segments_bf16 = &segments::kGemmSegmentsBf16;
    add_products_of_codes_in_planes(all);
    return of_library(all);
  }();
  return table;
}

}  // namespace aoext::cpu
