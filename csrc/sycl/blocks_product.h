// Products of weights that have a scale a block.
#pragma once

#include "common/checks.h"
#include "sycl/plan.h"

namespace aoext::xpu {

// Null where no kernel of this folder serves.
OptionalTensor blocks_product(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                              const OptionalTensor& bias, const OptionalTensor& input_scale = {},
                              const OptionalTensor& table = {}, const OptionalTensor& global_scale = {});

// bf16i8bf16_blockwise and bf16f8bf16_blockwise, by the operator's check and its generic kernel.
template <auto kCheck, auto kGeneric>
Tensor weight_only_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                             const OptionalTensor& bias) {
  const OptionalTensor y = blocks_product(kCheck(input, weight, scale, block_size, bias), input, weight, scale, bias);
  return y ? *y : kGeneric(input, weight, scale, block_size, bias);
}

}  // namespace aoext::xpu
