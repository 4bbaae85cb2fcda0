// Dynamic quantisation of the input by blocks and the scaled product, each by the device's own kernel.
#include "generic/blocks.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const Integers& input_block,
                               const Integers& weight_block, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_blockwise(input, weight, weight_scale, input_block, weight_block, bias);
  const auto [values, scale] = call2("ao::quantize_blockwise", "", input, storage(p.code), input_block, p.power_of_two);
  return call("ao::scaled_mm_blockwise", "", values, weight, scale, weight_scale, input_block, weight_block, bias,
              std::optional(p.output));
}

}  // namespace aoext::generic
