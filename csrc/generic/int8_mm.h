#pragma once

#include "common/torch_api.h"

namespace aoext::generic {

Tensor int8_mm(const Tensor& input, const Tensor& weight);

}  // namespace aoext::generic
