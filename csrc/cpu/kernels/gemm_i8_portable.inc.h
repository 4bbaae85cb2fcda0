// int8 by int8 in the blocks of gemm.inc.h as floats: exact, as long as a block's sums fit 24 bits.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

struct MultiplyI8 : MultiplyF32 {
  using Sum = int32_t;
  static void add(const Sums (&sums)[kNR], int32_t* acc) {
    float exact[kNR] = {};
    add_sums(sums, exact);
    for (int i = 0; i < kNR; ++i) acc[i] += static_cast<int32_t>(exact[i]);
  }
};

struct I8AsF32 {
  using Operand = float;
  static void load(Element, const void* source, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const int8_t*>(source)[i];
    pad_with_zeros(out, n);
  }
};

template <int64_t kKC>
constexpr Gemm8Bit kGemmI8{.shape = {.operand_bytes = sizeof(float), .NC = kNC, .KC = kKC, .pack_x = pack_x_rows<I8AsF32>},
                           .pack_w = pack_8bit_rows<I8AsF32, kKC>,
                           .macro_kernel = macro_kernel<MultiplyI8, kKC>};

}  // namespace
}  // namespace aoext::cpu
