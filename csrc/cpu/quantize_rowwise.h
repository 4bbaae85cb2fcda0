#pragma once

#include "common/checks.h"

namespace aoext::cpu {

// Values of rows, each block of them by a scale of its own; the problem is of whose operator's check.
std::tuple<Tensor, Tensor> quantize_by_blocks(const LinearProblem& p, const Tensor& input, ScalarType dtype, int64_t block);

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

}  // namespace aoext::cpu
