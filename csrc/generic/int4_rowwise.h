// bf16i4bf16_rowwise and its _bias of a device folder, whose kernels may not serve every problem.
#pragma once

#include "generic/generic.h"

namespace aoext::generic {

struct Int4Weight {
  const Tensor &weight, &scale, &zero_point;
};

// What a device folder brings: the product, or null where no kernel of its own serves. The generic kernels do then.
using Int4Kernel = OptionalTensor(const LinearProblem& p, const Tensor& input, const Int4Weight& w, const OptionalTensor& bias);

template <Int4Kernel kKernel>
Tensor int4_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  const OptionalTensor y = kKernel(p, input, {weight, scale, zero_point}, std::nullopt);
  return y ? *y : bf16i4bf16_rowwise(input, weight, scale, zero_point);
}

template <Int4Kernel kKernel>
Tensor int4_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                         const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  const OptionalTensor y = kKernel(p, input, {weight, scale, zero_point}, bias);
  return y ? *y : bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
}

}  // namespace aoext::generic
