// Dynamic quantisation of the input by rows and the product with an int4 weight, each by the device's own kernel.
#include "generic/blocks.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                          const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const LinearProblem p = check_scaled_linear_int4(input, weight, scale, zero_point, bias, input_dtype);
  const auto [values, input_scale] = call2("ao::quantize_rowwise", "", input, input_dtype.value_or(ScalarType::Char));
  return call("ao::scaled_mm_int4", "", values, weight, input_scale, scale, zero_point, bias, std::optional(p.output));
}

}  // namespace aoext::generic
