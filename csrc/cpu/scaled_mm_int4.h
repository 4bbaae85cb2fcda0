#pragma once

#include "common/checks.h"

namespace aoext::cpu {

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype);

}  // namespace aoext::cpu
