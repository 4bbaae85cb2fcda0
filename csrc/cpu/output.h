// Where results go: y[m, n] = (acc · input_scales[m]) · row_scale[n] + bias[n], less what zero points take off, rounded once.
//
// Sums, and weights that are widened, may leave float32 where their result does not: magnitudes near its largest, exponents of
// 2¹²⁷. What comes out as NaN or Inf of finite operands is computed once more, in double.
#pragma once

#include <bit>
#include <cmath>
#include <vector>

#include "common/dispatcher.h"
#include "cpu/subtracted_zero_points.h"
#include "cpu/values.h"
#include "cpu/weights.h"

namespace aoext::cpu {

struct Output {
  char* data;
  Element element;
  int64_t element_size, N;
  std::vector<float> input_scales;  // empty: ones
  std::vector<float> bias;          // empty: none
  const SubtractedZeroPoints* zero_points;

  // `x` and `weight` are the operands, which stay as long as this. Scales of x meet the sums where x has none of blocks.
  template <class Weight>
  Output(const LinearProblem& p, const Data& d, const InputRows& x, const Weight& weight,
         const SubtractedZeroPoints* zero_points_ = nullptr)
      : data(d.y),
        element(aoext::element(p.output)),
        element_size(size_of(p.output)),
        N(p.N),
        bias(floats(aoext::element(p.bias), d.bias, p.N)),
        zero_points(zero_points_),
        x_(x),
        x_block_(p.input_group_size),
        weight_(&weight),
        values_([](const void* w, int64_t n, double* out) { row_values(*static_cast<const Weight*>(w), n, out); }) {
    if (d.input_scale != nullptr && x.scales == nullptr) input_scales.assign(d.input_scale, d.input_scale + p.M);
  }

  // Channels [first, first + count) of row m.
  void store(int64_t m, int64_t first, int64_t count, const float* acc, const float* row_scales) const {
    const float* summand = bias.empty() ? nullptr : bias.data() + first;
    float less_zero_points[kPanel];
    if (zero_points != nullptr) summand = zero_points->take_off(m, first, count, summand, less_zero_points);
    const float scale = input_scales.empty() ? 1.0f : input_scales[m];
    kernels().scale_row(element, acc, scale, row_scales, summand, at(m, first), count);
    if (!are_finite(acc, scale, row_scales, summand, count))
      mend(m, first, count,
           [&](int64_t i) { return are_finite(acc + i, scale, row_scales + i, summand == nullptr ? nullptr : summand + i, 1); });
  }

 private:
  char* at(int64_t m, int64_t n) const { return data + (m * N + n) * element_size; }

  static bool are_finite(const float* acc, float scale, const float* row_scales, const float* summand, int64_t count) {
    uint32_t bits = 0;  // of zeros, signs aside, and of NaN: what is not finite times 0
    const auto look = [&](const auto& of) {
      for (int64_t i = 0; i < count; ++i) bits |= std::bit_cast<uint32_t>((acc[i] * scale * row_scales[i] + of(i)) * 0.0f);
    };
    if (summand == nullptr)
      look([](int64_t) { return 0.0f; });
    else
      look([&](int64_t i) { return summand[i]; });
    return (bits & 0x7fffffff) == 0;
  }

  // Computes again those of these channels that are not finite; a row of x that is not finite keeps what it has.
  template <class IsFinite>
  void mend(int64_t m, int64_t first, int64_t count, const IsFinite& is_finite) const {
    std::vector<float> codes(x_.K);
    kernels().to_float(x_.element, x_.row(m), codes.data(), x_.K);
    std::vector<double> x(codes.begin(), codes.end()), w(x_.K);
    for (int64_t k = 0; k < x_.K; ++k) {
      if (x_.scales != nullptr) x[k] *= x_.scales[m * x_.scales_of_row + k / x_block_];
      if (!input_scales.empty()) x[k] *= input_scales[m];
      if (!std::isfinite(x[k])) return;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (is_finite(i)) continue;
      const int64_t n = first + i;
      values_(weight_, n, w.data());
      if (zero_points != nullptr) zero_points->take_off_values(n, w);
      double y = bias.empty() ? 0 : bias[n];
      for (int64_t k = 0; k < x_.K; ++k) y += x[k] * w[k];
      const float result = static_cast<float>(y);
      kernels().from_float(element, &result, at(m, n), 1);
    }
  }

  const InputRows x_;
  const int64_t x_block_;
  const void* const weight_;
  void (*const values_)(const void* weight, int64_t n, double* out);  // of row n
};

inline InputRows input_rows(const LinearProblem& p, const void* x) { return {x, element(p.input), size_of(p.input), p.M, p.K}; }

}  // namespace aoext::cpu
