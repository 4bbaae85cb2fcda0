// What the generic kernels share: walking a weight by blocks of rows, so that no call holds a
// high-precision copy of a whole weight.
#pragma once

#include <algorithm>

#include "common/checks.h"
#include "common/dispatcher.h"

namespace aoext::generic {

constexpr int64_t kBlockElements = int64_t{1} << 22;  // 16 MiB as float32

// Calls f(first row, rows) for blocks of at most kBlockElements elements.
template <class F>
void for_row_blocks(int64_t rows, int64_t columns, const F& f) {
  const int64_t step = std::max<int64_t>(1, kBlockElements / columns);
  for (int64_t r = 0; r < rows; r += step) f(r, std::min(step, rows - r));
}

// y = x · wᵀ + bias, where rows(first, count) gives those rows of w in float32: the result is rounded
// once, so that the bound holds for a row of one element too.
template <class Rows>
Tensor linear_by_blocks(const LinearProblem& p, const Tensor& input, const Rows& rows, const Tensor* bias = nullptr) {
  Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  // Dense, so that strides do not choose another order of summation: the same numbers give the same bits.
  const Tensor x = aten::contiguous(aten::reshape(aten::to(input, ScalarType::Float), {p.M, p.K}));
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    Tensor product = aten::mm(x, aten::transpose(rows(first, count)));
    if (bias != nullptr) product = aten::add(product, aten::to(aten::narrow(*bias, 0, first, count), ScalarType::Float));
    aten::copy_(aten::narrow(y2d, 1, first, count), product);
  });
  return y;
}

}  // namespace aoext::generic
