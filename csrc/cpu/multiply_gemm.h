// Kernels of gemms on torch's threads, with float32 sums.
#pragma once

#include "cpu/output.h"
#include "cpu/plan.h"
#include "cpu/planes_weight.h"
#include "cpu/segments_weight.h"

namespace aoext::cpu {

// A product to be multiplied by these panels of the weight: `output` takes the sums of x's rows, which are those of `order`, or
// all.
struct Product {
  const LinearProblem& p;
  InputRows x;
  const Output& output;
  Panels panels;
  std::vector<int64_t> order = {};

  int64_t M() const { return x.M; }
  // Rows that a gemv takes at once, which decides in what order it sums up. Rows in an order are here for what they hold: how
  // many they are changes no result.
  int64_t at_once() const { return order.empty() ? M() : 1; }
  void store(int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) const {
    output.store(order.empty() ? m : order[m], first, count, sums, row_scales);
  }
};

template <class Gemm, class Weight>
void multiply_gemm(const Gemm& gemm, const Product& product, const Weight& weight) {
  gemm_product<float>(gemm, product.x, product.p.N, product.panels, weight, kParallelFor,
                      [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
                        product.store(m, first, count, sums, row_scales);
                      });
}

// multiply_by(kernel, product, weight): which kernels multiply which weights.
inline void multiply_by(const Gemm8Bit& gemm, const Product& product, const RowwiseWeight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmInt4& gemm, const Product& product, const Int4Weight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmInt4Codes& gemm, const Product& product, const Int4Weight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmBlockwise& gemm, const Product& product, const BlockwiseWeight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmBlockwise& gemm, const Product& product, const PlanesWeight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmSegments& gemm, const Product& product, const PlanesWeight& weight) {
  multiply_gemm(gemm, product, weight);
}
inline void multiply_by(const GemmSegments& gemm, const Product& product, const BlockwiseWeight& weight) {
  multiply_gemm(gemm, product, SegmentsWeight(product.p, weight));
}

}  // namespace aoext::cpu
