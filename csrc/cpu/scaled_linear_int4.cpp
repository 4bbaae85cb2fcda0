// Dynamic quantisation of the input, then the product with int4 weights: the two kernels in one call.
#include "cpu/plan.h"
#include "cpu/quantize_rowwise.h"
#include "cpu/scaled_mm_int4.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                          const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const LinearProblem p = check_scaled_linear_int4(input, weight, scale, zero_point, bias, input_dtype);
  const auto [values, input_scale] = quantize_rowwise(input, p.quantized);
  return scaled_mm_int4(values, weight, input_scale, scale, zero_point, bias, p.output);
}

}  // namespace

AOEXT_REGISTER(CPU, scaled_linear_int4, &explain<plan_scaled_int4>, &scaled_linear_int4)

}  // namespace aoext::cpu
