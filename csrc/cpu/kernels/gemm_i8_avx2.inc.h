// int8 by int8 in the blocks of gemm.inc.h: vpmaddwd of values widened to 16 bits, where a pair's sum cannot overflow.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

struct MultiplyI8 {
  static constexpr int kMR = 2;  // a product needs a register of its own
  using Operand = int16_t;
  using Vector = __m256i;
  using Sums = I32;
  using Sum = int32_t;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + (I32)_mm256_madd_epi16(w, x); }
  static void add(const Sums (&sums)[kNR], int32_t* acc) { add_sums(sums, acc); }
};

struct RowsAsI16 {
  using Operand = int16_t;
  static void load(Element, const void* source, int64_t n, int16_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const int8_t*>(source)[i];
    pad_with_zeros(out, n);
  }
};

template <int64_t kKC>
constexpr Gemm8Bit kGemmI8{.shape = {.operand_bytes = sizeof(int16_t), .NC = kNC, .KC = kKC, .pack_x = pack_x_rows<RowsAsI16>},
                           .pack_w = pack_8bit_rows<RowsAsI16, kKC>,
                           .macro_kernel = macro_kernel<MultiplyI8, kKC>};

}  // namespace
}  // namespace aoext::cpu
