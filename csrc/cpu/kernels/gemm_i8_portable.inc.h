// int8 by int8 in the blocks of gemm.inc.h as floats: exact, as long as a block's sums fit 24 bits.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

struct ProductI8 : ProductF32 {
  using Sum = int32_t;
};

inline void add_sums(const F32 (&v)[4], int32_t* acc) {
  float exact[4] = {};
  add_sums<float>(v, exact);
  for (int i = 0; i < 4; ++i) acc[i] += static_cast<int32_t>(exact[i]);
}

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
