// int8 by int8 in the blocks of gemm.inc.h: vpmaddwd of values widened to 16 bits, where a pair's sum cannot overflow.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

struct ProductI8 {
  static constexpr int kInputs = 2;
  using Operand = int16_t;
  using Vector = __m256i;
  using Sums = I32;
  using Sum = int32_t;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + (I32)_mm256_madd_epi16(w, x); }
};

void operands_i8(Element, const void* source, int64_t n, void* out) {
  ProductI8::Operand* const to = static_cast<ProductI8::Operand*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<const int8_t*>(source)[i];
  fill_up(to, n);
}

template <int64_t kDepth>
constexpr Tiles kTilesI8{.operand_bytes = sizeof(ProductI8::Operand),
                         .rows = kBlockRows,
                         .depth = kDepth,
                         .inputs = inputs<operands_i8>,
                         .weights = weights<ProductI8::Operand, kDepth, operands_i8>,
                         .multiply = multiply<ProductI8, kDepth>};

}  // namespace
}  // namespace aoext::cpu
