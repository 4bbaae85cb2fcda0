#pragma once

#include "common/problem.h"
#include "common/torch_api.h"

namespace aoext::cpu {

// Values of rows, each block of p.input_group_size of them by a scale of its own.
std::tuple<Tensor, Tensor> quantize_rows(const LinearProblem& p, const Tensor& input, ScalarType dtype);

}  // namespace aoext::cpu
