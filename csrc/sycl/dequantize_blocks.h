// Weights with a scale a block to high precision.
#pragma once

#include "common/checks.h"
#include "common/explain.h"

namespace aoext::xpu {

Explanation explain_dequantize_blocks(const Call& call);

// Null where the kernel does not serve.
OptionalTensor dequantize_blocks(const LinearProblem& p, const Tensor& weight, const Tensor& scale,
                                 const OptionalTensor& table = {}, const OptionalTensor& global_scale = {});

}  // namespace aoext::xpu
