// Dynamic quantisation: a row is scanned for its scale, then, while it is in cache, becomes its values.
#include "cpu/quantize_rowwise.h"

#include "common/formats.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

std::tuple<Tensor, Tensor> quantize_by_blocks(const LinearProblem& p, const Tensor& input, ScalarType dtype, int64_t block) {
  const int64_t blocks = ceil_div(p.K, block);
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

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  return quantize_by_blocks(p, input, dtype, p.K);
}

AOEXT_REGISTER(CPU, quantize_rowwise, &explain_rows, &quantize_rowwise)

}  // namespace aoext::cpu
