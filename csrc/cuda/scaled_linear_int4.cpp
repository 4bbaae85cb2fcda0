// Dynamic quantisation of the input by rows, and the product with an int4 weight, on CUDA: at once or one after the other.
#include "cuda/quantize_rowwise.h"
#include "cuda/scaled.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                          const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  LinearProblem p = check_scaled_linear_int4(input, weight, scale, zero_point, bias, input_dtype);
  const ScalarType dtype = input_dtype.value_or(ScalarType::Char);
  p.input = dtype;
  const ScaledOperands at_once{input, weight, scale, nullptr, &zero_point, bias};
  const ScaledPlan plan = plan_of(p, at_once);
  if (quantizes(plan)) return *scaled_by(plan, p, at_once);
  const QuantizedRows rows = quantize_rowwise(input, dtype, form_of(plan, p));
  if (const OptionalTensor y = scaled_by(plan, p, {rows.values, weight, scale, &rows.scales, &zero_point, bias, rows.sums}))
    return *y;
  return generic::scaled_mm_int4(rows.values, weight, rows.scales, scale, zero_point, bias, p.output);
}

Explanation explain_product(const Call& call) { return explain_scaled(call, 1, 2); }

}  // namespace

AOEXT_REGISTER(CUDA, scaled_linear_int4, &explain_product, &scaled_linear_int4)

}  // namespace aoext::cuda
