// Where results go: y[m, n] = (acc · input_scales[m]) · row_scale[n] + bias[n], rounded once.
#pragma once

#include <exception>
#include <mutex>
#include <vector>

#include "common/dispatcher.h"
#include "cpu/weights.h"

namespace aoext::cpu {

struct Output {
  char* data;
  Element element;
  int64_t element_size, N;
  std::vector<float> input_scales;  // empty: ones
  std::vector<float> bias;          // empty: none

  Output(const LinearProblem& p, const Tensor& y, const Tensor* input_scale, const OptionalTensor& bias_)
      : data(static_cast<char*>(y.mutable_data_ptr())),
        element(cpu::element(p.output)),
        element_size(static_cast<int64_t>(y.element_size())),
        N(p.N) {
    if (input_scale != nullptr) input_scales = floats(aten::contiguous(*input_scale));
    if (bias_) bias = floats(aten::contiguous(*bias_));
  }

  // Channels [first, first + count) of row m.
  void store(int64_t m, int64_t first, int64_t count, const float* acc, const float* row_scales) const {
    shared_kernels().scale_row(element, acc, input_scales.empty() ? 1.0f : input_scales[m], row_scales,
                               bias.empty() ? nullptr : bias.data() + first, data + (m * N + first) * element_size, count);
  }
};

// torch's threads, as gemm.h and gemv.h ask for them: f(begin, end) for parts of [0, n). What f throws is thrown here: torch's
// frames between may be of another C++ library, as on Windows.
inline constexpr auto kParallelFor = [](int64_t n, int64_t grain, const auto& f) {
  std::mutex mutex;
  std::exception_ptr thrown;
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) noexcept {
    try {
      f(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
};

// All rows of a tensor that is contiguous.
inline InputRows input_rows(const LinearProblem& p, const Tensor& x) {
  return {x.const_data_ptr(), element(p.input), static_cast<int64_t>(x.element_size()), p.M, p.K};
}

}  // namespace aoext::cpu
