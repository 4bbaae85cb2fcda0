// Where results go: y[m, n] = (acc · input_scales[m]) · row_scale[n] + bias[n], less what zero points take off, rounded once.
#pragma once

#include <vector>

#include "common/dispatcher.h"
#include "cpu/subtracted_zero_points.h"
#include "cpu/weights.h"

namespace aoext::cpu {

struct Output {
  char* data;
  Element element;
  int64_t element_size, N;
  std::vector<float> input_scales;  // empty: ones
  std::vector<float> bias;          // empty: none
  const SubtractedZeroPoints* zero_points;

  Output(const LinearProblem& p, const Tensor& y, const Tensor* input_scale, const OptionalTensor& bias_,
         const SubtractedZeroPoints* zero_points_ = nullptr)
      : data(static_cast<char*>(y.mutable_data_ptr())),
        element(cpu::element(p.output)),
        element_size(static_cast<int64_t>(y.element_size())),
        N(p.N),
        zero_points(zero_points_) {
    if (input_scale != nullptr) input_scales = floats(aten::contiguous(*input_scale));
    if (bias_) bias = floats(aten::contiguous(*bias_));
  }

  // Channels [first, first + count) of row m.
  void store(int64_t m, int64_t first, int64_t count, const float* acc, const float* row_scales) const {
    const float* summand = bias.empty() ? nullptr : bias.data() + first;
    float less_zero_points[kPanel];
    if (zero_points != nullptr) summand = zero_points->take_off(m, first, count, summand, less_zero_points);
    shared_kernels().scale_row(element, acc, input_scales.empty() ? 1.0f : input_scales[m], row_scales, summand,
                               data + (m * N + first) * element_size, count);
  }
};

// All rows of a tensor that is contiguous.
inline InputRows input_rows(const LinearProblem& p, const Tensor& x) {
  return {x.const_data_ptr(), element(p.input), static_cast<int64_t>(x.element_size()), p.M, p.K};
}

}  // namespace aoext::cpu
