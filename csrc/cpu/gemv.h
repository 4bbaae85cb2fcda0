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

// The rows of x as a gemv packs them.
class PackedRows {
 public:
  template <class Gemv>
  PackedRows(const LinearProblem& p, const Tensor& input, const Gemv& gemv) : PackedRows(p.M, p.K, gemv.operand_bytes) {
    each_input_row(p, input, [&](int64_t m, const void* row) { gemv.pack_x(element(p.input), row, p.K, row_of(m)); });
  }
  // Rows with a scale for each `block` of elements, or with none, as the values that they stand for.
  template <class Gemv>
  PackedRows(const InputRows& x, int64_t block, const Gemv& gemv) : PackedRows(x.M, x.K, gemv.operand_bytes) {
    std::vector<float> values(x.K);
    for (int64_t m = 0; m < x.M; ++m) {
      shared_kernels().to_float(x.element, x.row(m), values.data(), x.K);
      for (int64_t k = 0; x.scales != nullptr && k < x.K; ++k) values[k] *= x.scales[m * x.scales_of_row + k / block];
      gemv.pack_x(Element::fp32, values.data(), x.K, row_of(m));
    }
  }
  const void* data() const { return rows_ + 0; }
  int64_t stride() const { return stride_; }  // operands

 private:
  PackedRows(int64_t M, int64_t K, int64_t operand_bytes)
      : stride_(padded(K)), row_bytes_(stride_ * operand_bytes), rows_(M * row_bytes_) {
    std::memset(rows_ + 0, 0, M * row_bytes_);
  }
  char* row_of(int64_t m) const { return rows_ + m * row_bytes_; }

  int64_t stride_, row_bytes_;
  Scratch rows_;
};

// Algorithm::gemv_8bit.
inline void multiply_gemv_8bit(const LinearProblem& p, const Plan& plan, const Tensor& input, const RowwiseWeight& weight,
                               const Output& output) {
  const Gemv8Bit& gemv = plan.compute == ScalarType::BFloat16 ? *kernels().gemv_8bit_bf16 : *kernels().gemv_8bit_f32;
  const PackedRows x(p, input, gemv);
  each_panel(p, weight, output, [&](RowwiseWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    panel.move(first, count, 0, p.K);
    gemv.dot(x.data(), x.stride(), p.M, weight.value_element, panel.values(0), count, p.K, sums);
  });
}

}  // namespace aoext::cpu
