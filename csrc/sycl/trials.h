// Random operands of small problems on an XPU, and the operators that compute with them: what probes are made of.
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <sycl/sycl.hpp>

#include "common/dispatcher.h"
#include "common/problem.h"

namespace aoext::xpu {

enum class Exact { no, yes };

struct Trial {
  std::string what;
  std::function<Tensor()> run;  // by the operator, whose kernel is the one that plans may take
  Exact exact = Exact::no;
};

// Random tensors on the queue's device.
class Draw {
 public:
  explicit Draw(const sycl::queue& queue);

  Tensor normal(const std::vector<int64_t>& sizes, ScalarType dtype);
  Tensor positive(const std::vector<int64_t>& sizes, ScalarType dtype);  // 0.01 to 0.1; of e8m0 around a quarter
  Tensor bytes(const std::vector<int64_t>& sizes);
  Tensor blocks(std::vector<int64_t> sizes, Code code);  // of bytes; the float16 in them are 0.01 to 0.1
  Tensor ends(int64_t experts, int64_t last);            // offsets, the last one given; not all experts have rows
  Tensor eight_bit(const std::vector<int64_t>& sizes, ScalarType dtype);

 private:
  template <class T, class Next>
  Tensor fill(const std::vector<int64_t>& sizes, ScalarType drawn, ScalarType dtype, const Next& next);

  torch::stable::Device device_;
  std::mt19937 generator_{20};  // the same problems in every process, so that a report can be repeated
};

// y = x · wᵀ + bias of a problem whose sizes, format and types are given; scales are float32 in a problem with an input of 8
// bits.
Trial product_trial(Draw& draw, const LinearProblem& p);
Trial int8_mm_trial(Draw& draw, int64_t M, int64_t N, int64_t K);
Trial int4pack_trial(Draw& draw, int64_t M, int64_t inner_k_tiles);
Trial dequantize_trial(Draw& draw, const LinearProblem& p);
std::vector<Trial> sort_trials(Draw& draw, ScalarType dtype, int64_t pairs, int64_t experts);
std::vector<Trial> quantize_trials(Draw& draw, ScalarType dtype, int64_t K, const OptionalIntegers& block, bool power_of_two);

}  // namespace aoext::xpu
