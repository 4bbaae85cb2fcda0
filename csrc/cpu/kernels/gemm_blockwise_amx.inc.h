// Weights with a scale a block as bfloat16 for AMX's gemm: values times their scales, rounded once. Where scales are powers of
// two, 8-bit values stay exact.
#pragma once

#include "cpu/kernels/blockwise.inc.h"
#include "cpu/kernels/gemm_amx.inc.h"

namespace aoext::cpu {
namespace {

constexpr GemmBlockwise kGemmBlockwiseBf16{.shape = kShapeAmx<DotBf16, RowsAsBf16>,
                                           .pack_w = pack_blockwise_rows<BlockwiseAsBf16, kKCAmx<DotBf16>>,
                                           .macro_kernel = macro_kernel_of_scaled<macro_kernel_amx<DotBf16>>};

}  // namespace
}  // namespace aoext::cpu
