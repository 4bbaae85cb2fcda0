// The products of few rows of x that read a weight as it lies, once: Algorithm::gemv_8bit, and the loop over panels that all of
// them share.
#pragma once

#include <cstring>

#include "cpu/output.h"
#include "cpu/plan.h"

namespace aoext::cpu {

// f(m, row) for each row of x.
template <class F>
void each_input_row(const LinearProblem& p, const Tensor& input, const F& f) {
  const Tensor x = aten::contiguous(input);
  const InputRows rows = input_rows(p, x);
  for (int64_t m = 0; m < p.M; ++m) f(m, rows.row(m));
}

// Rows of x that `order` names, or all: `product` brings the panel to `count` rows of weights from `first` on and multiplies
// them.
template <class Weight, class Product>
void each_panel(const LinearProblem& p, const Weight& weight, const Output& output, const Product& product,
                const std::vector<int64_t>& order = {}) {
  const int64_t M = order.empty() ? p.M : static_cast<int64_t>(order.size());
  kParallelFor(ceil_div(p.N, kPanel), grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    typename Weight::Panel panel(weight);
    std::vector<float> sums(M * kPanel);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kPanel, count = std::min<int64_t>(kPanel, p.N - first);
      product(panel, first, count, reinterpret_cast<float (*)[kPanel]>(sums.data()));
      for (int64_t m = 0; m < M; ++m)
        output.store(order.empty() ? m : order[m], first, count, &sums[m * kPanel], panel.row_scales());
    }
  });
}

// Algorithm::gemv_8bit.
inline void multiply_gemv_8bit(const LinearProblem& p, const Plan& plan, const Tensor& input, const RowwiseWeight& weight,
                               const Output& output) {
  const Gemv8Bit& gemv = plan.compute == ScalarType::BFloat16 ? *kernels().gemv_8bit_bf16 : *kernels().gemv_8bit_f32;
  const int64_t x_stride = padded(p.K), row_bytes = x_stride * gemv.operand_bytes;
  const Scratch x(p.M * row_bytes);
  std::memset(x + 0, 0, p.M * row_bytes);
  each_input_row(p, input, [&](int64_t m, const void* row) { gemv.pack_x(element(p.input), row, p.K, x + m * row_bytes); });
  each_panel(p, weight, output, [&](RowwiseWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    panel.move(first, count, 0, p.K);
    gemv.dot(x + 0, x_stride, p.M, weight.value_element, panel.values(0), count, p.K, sums);
  });
}

}  // namespace aoext::cpu
