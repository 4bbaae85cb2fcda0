// The product that takes every problem, by the kernels of kernels/linear_any.cpp.
#pragma once

#include <sycl/sycl.hpp>

#include "sycl/operands.h"

namespace aoext::xpu {

// y [M, N] of operands that are contiguous, none empty, at any alignment of their elements; K less than 2^30. y is int32 where
// p.output is: int8 by int8 without scales. Needs a device with sub-groups of 16 and 16-bit floats.
void linear_any(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Dense& o);

}  // namespace aoext::xpu
