// int4 weights under an 8-bit input: by int8 products of nibbles are exact within a group.
#include "cpu/scaled_mm_int4.h"

#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  return linear(p, plan_scaled_int4(p), input, Int4Weight(p, weight, scale, zero_point), &input_scale, bias);
}

AOEXT_REGISTER(CPU, scaled_mm_int4, &explain<plan_scaled_int4>, &scaled_mm_int4)

}  // namespace aoext::cpu
