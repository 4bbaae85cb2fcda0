// The products of few rows of x that read a weight as it lies, once, and the loop over panels that all of them share.
#pragma once

#include <cstring>

#include "cpu/multiply_gemm.h"

namespace aoext::cpu {

// multiply(panel, first, count, sums) brings the panel to `count` rows of weights from `first` on and multiplies them.
template <class Weight, class Multiply>
void each_panel(const Product& product, const Weight& weight, const Multiply& multiply) {
  const LinearProblem& p = product.p;
  const Panels& panels = product.panels;
  kParallelFor(panels.end - panels.begin, grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    typename Weight::Panel panel(weight);
    std::vector<float> sums(product.M() * kPanel);
    for (int64_t t = panels.begin + begin; t < panels.begin + end; ++t) {
      const int64_t first = t * kPanel, count = std::min<int64_t>(kPanel, p.N - first);
      multiply(panel, first, count, reinterpret_cast<float (*)[kPanel]>(sums.data()));
      for (int64_t m = 0; m < product.M(); ++m) product.store(m, first, count, &sums[m * kPanel], panel.row_scales());
    }
  });
}

// The rows of x as a gemv packs them; those with a scale for each `block` of elements as the values that they stand for.
class PackedRows {
 public:
  template <class Gemv>
  PackedRows(const InputRows& x, int64_t block, const Gemv& gemv)
      : stride_(padded(x.K)), row_bytes_(stride_ * gemv.operand_bytes), rows_(x.M * row_bytes_) {
    std::memset(rows_ + 0, 0, x.M * row_bytes_);
    std::vector<float> values(x.scales == nullptr ? 0 : x.K);
    for (int64_t m = 0; m < x.M; ++m) {
      char* const to = rows_ + m * row_bytes_;
      if (x.scales == nullptr) {
        gemv.pack_x(x.element, x.row(m), x.K, to);
        continue;
      }
      values_of(x, block, m, values.data());
      gemv.pack_x(Element::fp32, values.data(), x.K, to);
    }
  }
  const void* row(int64_t m) const { return rows_ + m * row_bytes_; }
  int64_t stride() const { return stride_; }  // operands

 private:
  int64_t stride_, row_bytes_;
  Scratch rows_;
};

inline void multiply_by(const Gemv8Bit& gemv, const Product& product, const RowwiseWeight& weight) {
  const PackedRows x(product.x, 0, gemv);
  each_panel(product, weight, [&](RowwiseWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    panel.move(first, count, 0, weight.K);
    for (int64_t m = 0; m < product.M(); m += product.at_once())
      gemv.dot(x.row(m), x.stride(), product.at_once(), weight.value_element, panel.values(0), count, weight.K, sums + m);
  });
}

template <class Weight>
  requires(Weight::kBlockwise)
void multiply_by(const GemvBlockwise& gemv, const Product& product, const Weight& weight) {
  const PackedRows x(product.x, product.p.input_group_size, gemv);
  each_panel(product, weight, [&](typename Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    panel.move(first, count, 0, weight.K);
    for (int64_t m = 0; m < product.M(); m += product.at_once())
      gemv.dot(x.row(m), x.stride(), product.at_once(), panel.rows(0), count, weight.K, sums + m);
  });
}

}  // namespace aoext::cpu
