// Dynamic quantisation: a row is scanned for its scales, then, while it is in cache, becomes its values.
#include "cpu/quantize.h"

#include "common/formats.h"
#include "cpu/explain.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

std::tuple<Tensor, Tensor> quantize_rows(const LinearProblem& p, const Tensor& input, ScalarType dtype) {
  const int64_t block = p.input_group_size, blocks = ceil_div(p.K, block);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, blocks), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor rows = aten::contiguous(input);
  const char* const in = static_cast<const char*>(rows.const_data_ptr());
  char* const out = static_cast<char*>(values.mutable_data_ptr());
  float* const scale = static_cast<float*>(scales.mutable_data_ptr());
  const int64_t bytes = static_cast<int64_t>(rows.element_size());
  kParallelFor(p.M, grain(1, p.K), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
      kernels().quantize_row(element(p.input), in + m * p.K * bytes, p.K, block, p.power_of_two, element(dtype),
                             quantized_max(dtype), out + m * p.K, scale + m * blocks);
  });
  return {values, scales};
}

namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size,
                                    bool power_of_two) {
  return quantize_rows(check_quantize(input, dtype, block_size, power_of_two), input, dtype);
}

}  // namespace

AOEXT_REGISTER(CPU, quantize, &explain, &quantize)

}  // namespace aoext::cpu
