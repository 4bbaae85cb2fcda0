// Weight-only int8 on any device.
#include "common/library.h"
#include "generic/generic.h"
#include "generic/weight_only_8bit.h"

namespace aoext::generic {

Tensor bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale) {
  return weight_only_8bit(check_bf16i8bf16_rowwise(input, weight, scale), input, weight, scale);
}

// Through the dispatcher, so that a device with a kernel for the first operator alone gets it here too: of float32, whose result
// is not rounded before the bias is added.
Tensor bf16i8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias) {
  const LinearProblem p = check_bf16i8bf16_rowwise_bias(input, weight, scale, bias);
  return add_bias(p, call("ao::bf16i8bf16_rowwise", "", aten::to(input, ScalarType::Float), weight, scale), bias);
}

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("bf16i8bf16_rowwise", TORCH_BOX(&bf16i8bf16_rowwise));
  m.impl("bf16i8bf16_rowwise_bias", TORCH_BOX(&bf16i8bf16_rowwise_bias));
}

}  // namespace aoext::generic
