// Weight-only float8 on any device.
#include "generic/weight_only_8bit.h"

#include "generic/generic.h"

namespace aoext::generic {

Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  return weight_only_8bit(check_bf16f8bf16_rowwise(input, weight, scale, bias), input, weight, scale, bias);
}

}  // namespace aoext::generic
