// Dynamic quantisation of the input and the scaled product, each by the device's own kernel.
#include "common/dispatcher.h"
#include "generic/products.h"

namespace aoext::generic {

Tensor scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code, const OptionalTensor& bias,
                     const OptionalIntegers& input_block, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                     const OptionalTensor& offsets, std::optional<ScalarType> input_dtype) {
  const LinearProblem p =
      check_scaled_linear(input, weight, scale, code, bias, input_block, block_size, zero_point, offsets, input_dtype);
  const auto [values, input_scale] = call_all<2>("ao::quantize", "", input, p.quantized, input_block, p.power_of_two);
  return call("ao::scaled_mm", "", values, weight, input_scale, scale, code, bias, input_block, block_size, zero_point, offsets,
              std::optional(p.output));
}

}  // namespace aoext::generic
