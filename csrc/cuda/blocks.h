// Weight-only products with a scale a block of w on CUDA.
#pragma once

#include "common/explain.h"
#include "cuda/operands.h"
#include "generic/blockwise.h"

namespace aoext::cuda {

// Null where no kernel of this folder serves.
OptionalTensor blocks(const LinearProblem& p, const Tensor& input, const generic::BlockwiseWeight& w, const OptionalTensor& bias);

// bf16i8bf16_blockwise and bf16f8bf16_blockwise, by the operator's check and its generic kernel.
template <auto kCheck, auto kGeneric>
Tensor weight_only_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                             const OptionalTensor& bias) {
  const LinearProblem p = kCheck(input, weight, scale, block_size, bias);
  const OptionalTensor y = blocks(p, input, {weight, scale}, bias);
  return y ? *y : kGeneric(input, weight, scale, block_size, bias);
}

// For aoext.explain.
Explanation explain_blocks(const Call& call);

}  // namespace aoext::cuda
