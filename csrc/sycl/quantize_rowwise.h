// Dynamic quantisation on an XPU.
#pragma once

#include <tuple>

#include "common/torch_api.h"

namespace aoext::xpu {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

}  // namespace aoext::xpu
