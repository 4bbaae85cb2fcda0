// The product that takes every problem, by the kernel of kernels/linear_any.cpp.
#pragma once

#include <sycl/sycl.hpp>

#include "common/checks.h"

namespace aoext::xpu {

// y [M, N] of x [M, K] and weight, all contiguous, none empty, at any alignment of their elements; sizes and types are
// p's, K less than 2^30. With zero_point the weight is int4 [N, K/2], scale and zero_point [K/group_size, N]; without, the
// weight is int8 or float8 [N, K] and scale [N], or null for none. input_scale is float32 [M] or null, bias [N].
// y is int32 where p.output is: int8 by int8 without scales. Needs a device with sub-groups of 16 and 16-bit floats.
void linear_any(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Tensor& x, const Tensor& weight,
                const Tensor* scale, const Tensor* zero_point, const Tensor* input_scale, const OptionalTensor& bias);

// The same where x, the weight or both have a scale a block: null table of codes of 8 bits, null input_scale of x in high
// precision. Scales and bias are contiguous.
struct BlocksOperands {
  const Tensor &x, &weight, &scale;
  const Tensor *table, *global_scale, *input_scale, *bias;
};
void linear_any_blocks(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const BlocksOperands& operands);

}  // namespace aoext::xpu
