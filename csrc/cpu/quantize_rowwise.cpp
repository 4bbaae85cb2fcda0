// Dynamic quantisation: a row is scanned for its scale, then, while it is in cache, becomes its values.
#include "cpu/quantize_rowwise.h"

#include "common/formats.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor rows = aten::contiguous(input);
  const char* const in = static_cast<const char*>(rows.const_data_ptr());
  char* const out = static_cast<char*>(values.mutable_data_ptr());
  float* const scale = static_cast<float*>(scales.mutable_data_ptr());
  const int64_t bytes = static_cast<int64_t>(rows.element_size());
  torch::stable::parallel_for(0, p.M, grain(1, p.K), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
      scale[m] = kernels().quantize_row(element(p.input), in + m * p.K * bytes, p.K, element(dtype), quantized_max(dtype),
                                        out + m * p.K);
  });
  return {values, scales};
}

AOEXT_REGISTER(CPU, quantize_rowwise, &explain_rows, &quantize_rowwise)

}  // namespace aoext::cpu
