#pragma once

#include "common/checks.h"

namespace aoext::cpu {

// The product of scaled_mm_blockwise, whose problem this is; `power_of_two` where the input's scales are known to be such.
Tensor multiply_by_blocks(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                          const Tensor& weight_scale, const OptionalTensor& bias);

}  // namespace aoext::cpu
