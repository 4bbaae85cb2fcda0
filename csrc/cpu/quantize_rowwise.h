#pragma once

#include "common/checks.h"

namespace aoext::cpu {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

}  // namespace aoext::cpu
