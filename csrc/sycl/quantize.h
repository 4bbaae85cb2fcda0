// Dynamic quantisation on an XPU.
#pragma once

#include <tuple>

#include "common/problem.h"
#include "common/torch_api.h"

namespace aoext::xpu {

// Values of `input` in a dtype of 8 bits, and scales, as the problem says: by the kernels of this folder or the generic one.
std::tuple<Tensor, Tensor> quantized(const LinearProblem& p, const Tensor& input, ScalarType dtype);

}  // namespace aoext::xpu
