// Zero points beside a product: integers of 8-bit weights, which a product with the codes takes off its results,
//
//   Σ_k x[m, k] · (q − z)[n, k] · s[n, k]  =  Σ_k x[m, k] · q[n, k] · s[n, k]  −  Σ_b Σ_block(x)[m, b] · (z · s)[n, b]
//
// and floats of weights whose codes lie in planes, which are added: they count as −z.
//
// q − z has 9 bits, q has the 8 that kernels read. All is float32 until the difference is: where rows of x have a mean, or zero
// points are large, both terms are far above it.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/data.h"
#include "cpu/gemm.h"
#include "cpu/parallel.h"

namespace aoext::cpu {

class SubtractedZeroPoints {
 public:
  SubtractedZeroPoints(const LinearProblem& p, const InputRows& x, const WeightData& w, const Panels& panels)
      : group_size_(p.group_size),
        groups_(ceil_div(p.K, p.group_size)),
        sums_(p.M * groups_ * kFloatBytes),
        terms_(ceil_div(p.N, kPanel) * groups_ * kPanel * kFloatBytes) {
    sum_rows(p, x);
    kParallelFor(panels.end - panels.begin, grain(kPanel, groups_), [&](int64_t begin, int64_t end) {
      for (int64_t panel = panels.begin + begin; panel < panels.begin + end; ++panel) multiply(p, w, panel);
    });
  }

  // Those of a weight whose values (values.h) have them.
  template <class Weight>
  SubtractedZeroPoints(const LinearProblem& p, const InputRows& x, const Weight& w, const Panels& panels)
      : group_size_(p.group_size),
        groups_(p.K / p.group_size),
        of_values_(false),
        sums_(p.M * groups_ * kFloatBytes),
        terms_(ceil_div(p.N, kPanel) * groups_ * kPanel * kFloatBytes) {
    sum_rows(p, x);
    kParallelFor(panels.end - panels.begin, grain(kPanel, groups_), [&](int64_t begin, int64_t end) {
      typename Weight::Panel own(w);
      for (int64_t first = (panels.begin + begin) * kPanel; first < (panels.begin + end) * kPanel; first += kPanel)
        own.zero_point_terms(first, std::min<int64_t>(kPanel, p.N - first), terms(first));
    });
  }

  // bias[n] less what row m loses, for the `count` channels of the panel from `first` on; bias may be null. Gives `out`.
  const float* take_off(int64_t m, int64_t first, int64_t count, const float* bias, float (&out)[kPanel]) const {
    std::fill_n(out, kPanel, 0.0f);
    if (bias != nullptr) std::copy_n(bias, count, out);
    kernels().subtract_group_terms(sums(m), terms(first), groups_, out);
    return out;
  }

  // The same of row n of the weight, whose codes by their scales are given.
  void take_off_values(int64_t n, std::vector<double>& values) const {
    if (!of_values_) return;
    const float* const of_row = terms(n / kPanel * kPanel) + n % kPanel;
    for (size_t k = 0; k < values.size(); ++k) values[k] -= of_row[static_cast<int64_t>(k) / group_size_ * kPanel];
  }

 private:
  static constexpr int64_t kFloatBytes = sizeof(float);

  float* sums(int64_t m) const { return reinterpret_cast<float*>(sums_ + m * groups_ * kFloatBytes); }
  float* terms(int64_t first) const { return reinterpret_cast<float*>(terms_ + first * groups_ * kFloatBytes); }

  void sum_rows(const LinearProblem& p, const InputRows& x) {
    kParallelFor(p.M, grain(1, p.K), [&](int64_t begin, int64_t end) {
      std::vector<float> values(x.scales == nullptr ? 0 : p.K);
      for (int64_t m = begin; m < end; ++m) {
        if (x.scales == nullptr) {
          sum(p, x, m);
          continue;
        }
        values_of(x, p.input_group_size, m, values.data());
        kernels().group_sums(Element::fp32, values.data(), p.K, p.group_size, sums(m), 1);
      }
    });
  }

  void sum(const LinearProblem& p, const InputRows& x, int64_t m) {
    const int64_t whole = p.K / p.group_size, rest = p.K - whole * p.group_size;
    kernels().group_sums(x.element, x.row(m), p.K, p.group_size, sums(m), 1);
    if (rest == 0) return;
    const char* const last = x.row(m) + (p.K - rest) * x.element_size;
    kernels().group_sums(x.element, last, rest, rest, sums(m) + whole, 1);
  }

  void multiply(const LinearProblem& p, const WeightData& w, int64_t panel) {
    const void *scales[kPanel], *zero_points[kPanel];
    for (int64_t i = 0; i < kPanel; ++i) {
      const int64_t at = std::min(panel * kPanel + i, p.N - 1) / p.block_n * groups_;
      scales[i] = w.scale + at * size_of(p.scale);
      zero_points[i] = w.zero_point + at;
    }
    kernels().zero_point_terms(element(p.scale), scales, zero_points, groups_, terms(panel * kPanel));
  }

  const int64_t group_size_, groups_;
  const bool of_values_ = true;
  const Scratch sums_, terms_;  // floats: Σ_block(x) [M, groups]; z · s [N/kPanel, groups, kPanel]
};

}  // namespace aoext::cpu
