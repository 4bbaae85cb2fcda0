// int4 weights to high precision on an XPU.
#pragma once

#include <optional>

#include <sycl/sycl.hpp>

#include "common/checks.h"

namespace aoext::xpu {

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype);

// Into out [N, K], bfloat16, float16 or float32 and contiguous; N, K, group_size and scale are p's. Needs a device
// with sub-groups of 16 and 16-bit floats.
void dequantize_int4_into(sycl::queue& queue, const LinearProblem& p, const Tensor& out, const Tensor& weight,
                          const Tensor& scale, const Tensor& zero_point);

}  // namespace aoext::xpu
