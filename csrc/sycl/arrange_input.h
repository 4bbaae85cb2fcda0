// x in the order in which tile kernels for many rows by codes of 4 bits want it (kernels/int4_input.h).
#pragma once

#include <sycl/sycl.hpp>

#include "common/checks.h"
#include "sycl/plan.h"

namespace aoext::xpu {

// x [M, K] of 16-bit floats, contiguous, as the plan's kernel reads it: rearranged, rows padded to whole work-groups, or as it
// is. The rows of each expert, too, begin with a work-group's.
Tensor arranged(const LinearProblem& p, const Plan& plan, sycl::queue& queue, const Tensor& x, const OptionalTensor& offsets);

}  // namespace aoext::xpu
