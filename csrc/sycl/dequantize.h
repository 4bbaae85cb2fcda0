// Weights to high precision, by kernels/dequantize_blocks.cpp.
#pragma once

#include <sycl/sycl.hpp>

#include "common/checks.h"

namespace aoext::xpu {

// A weight whose codes lie as common/layout.h says, contiguous like its scales, into `out` [N, K] of p.output. Needs a device
// with sub-groups of 16 and 16-bit floats.
void dequantize_planes(sycl::queue& queue, const LinearProblem& p, const Tensor& weight, const Tensor& scale,
                       const OptionalTensor& zero_point, const Tensor& out);

}  // namespace aoext::xpu
