// Dynamic quantisation of the input and the scaled product, each by the device's own kernel.
#include "generic/blocks.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const auto [values, scale] = call2("ao::quantize_rowwise", "", input, storage(p.code));
  return call("ao::scaled_mm_rowwise", "", values, weight, scale, weight_scale, bias, std::optional(p.output));
}

}  // namespace aoext::generic
