// 8-bit × 8-bit with scales, bias and output dtype in the epilogue.
#include "cpu/scaled_mm_rowwise.h"

#include "cpu/int8_product.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  const Plan plan = plan_scaled(p);
  const RowwiseWeight rows(p, weight, floats(weight_scale));
  if (p.input != ScalarType::Char) return linear(p, plan, input, rows, &input_scale, bias);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input);
  const Output output(p, y, input_rows(p, x), rows, &input_scale, bias);
  int8_product(p, plan, x, rows, [&](int64_t m, int64_t first, int64_t count, const int32_t* sums, const float* row_scales) {
    float values[kPanel];
    shared_kernels().to_float(Element::int32, sums, values, count);
    output.store(m, first, count, values, row_scales);
  });
  return y;
}

AOEXT_REGISTER(CPU, scaled_mm_rowwise, &explain<plan_scaled>, &scaled_mm_rowwise)

}  // namespace aoext::cpu
