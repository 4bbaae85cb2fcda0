// Weight-only int8 on an XPU.
#include "generic/generic.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {
namespace {

Tensor bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale) {
  const LinearProblem p = check_bf16i8bf16_rowwise(input, weight, scale);
  const OptionalTensor y = rowwise(p, {input, weight, nullptr, &scale, std::nullopt});
  return y ? *y : generic::bf16i8bf16_rowwise(input, weight, scale);
}

Tensor bf16i8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias) {
  const LinearProblem p = check_bf16i8bf16_rowwise_bias(input, weight, scale, bias);
  const OptionalTensor y = rowwise(p, {input, weight, nullptr, &scale, bias});
  return y ? *y : generic::bf16i8bf16_rowwise_bias(input, weight, scale, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) {
  m.impl("bf16i8bf16_rowwise", TORCH_BOX(&bf16i8bf16_rowwise));
  m.impl("bf16i8bf16_rowwise_bias", TORCH_BOX(&bf16i8bf16_rowwise_bias));
}

}  // namespace aoext::xpu
