// DESIGN's formula of dynamic quantisation line by line, so that the bits are the same everywhere.
#pragma once

#include <tuple>

#include "common/torch_api.h"

namespace aoext::generic {

// Values of x, float32 [..., n], in `dtype`, and scales [..., 1], one for each n; rounded up to powers of two where asked.
std::tuple<Tensor, Tensor> quantize_values(const Tensor& x, ScalarType dtype, bool power_of_two);

}  // namespace aoext::generic
