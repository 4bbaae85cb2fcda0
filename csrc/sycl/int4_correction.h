// int4's float zero points as integer ones and a rest, for products that know integers alone.
#pragma once

#include <sycl/sycl.hpp>

#include "common/checks.h"

namespace aoext::xpu {

// q · s + z = (q − integers) · s + rest, all [K/group_size, N].
struct Int4Zeros {
  Tensor integers;  // int8, next to −z / s
  Tensor rest;      // float32, at most half a scale where the integers reach
  Tensor scale;     // s as float32
};

// These need a device with sub-groups of 16 and 16-bit floats; memory comes from the allocator of the tensors' device.
Int4Zeros split_zeros(sycl::queue& queue, const LinearProblem& p, const Tensor& scale, const Tensor& zero_point);

// Float32 [M, K/group_size]: the sums of x [M, K], contiguous, over each group.
Tensor group_sums(sycl::queue& queue, const LinearProblem& p, const Tensor& x);

}  // namespace aoext::xpu
