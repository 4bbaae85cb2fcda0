#include "sycl/int4_correction.h"

#include <algorithm>

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"
#include "sycl/operands.h"

namespace aoext::xpu {
namespace {

// Work-items side by side, at least `count`.
sycl::nd_range<2> line(int64_t count) {
  const auto width = static_cast<size_t>(kSubGroups * kLanes);
  return {{1, static_cast<size_t>(ceil_div(count, width)) * width}, {1, width}};
}

}  // namespace

Int4Zeros split_zeros(sycl::queue& queue, const LinearProblem& p, const Tensor& scale, const Tensor& zero_point) {
  const std::vector<int64_t> sizes{p.K / p.group_size, p.N};
  const bool copies_scale = p.scale != ScalarType::Float;
  const Int4Zeros zeros{aten::empty(sizes, ScalarType::Char, scale), aten::empty(sizes, ScalarType::Float, scale),
                        copies_scale ? aten::empty(sizes, ScalarType::Float, scale) : scale};
  const int64_t count = sizes[0] * sizes[1];
  if (count == 0) return zeros;
  static const Module& kernel = module("int4_correction.lanes", "int4_prepare");
  launch(queue, kernel, line(count), static_cast<int8_t*>(zeros.integers.mutable_data_ptr()),
         static_cast<float*>(zeros.rest.mutable_data_ptr()),
         copies_scale ? static_cast<float*>(zeros.scale.mutable_data_ptr()) : nullptr, scale.const_data_ptr(),
         zero_point.const_data_ptr(), count, element(p.scale));
  return zeros;
}

Tensor group_sums(sycl::queue& queue, const LinearProblem& p, const Tensor& x) {
  const int64_t groups = p.K / p.group_size, count = p.M * groups;
  const Tensor sums = aten::empty({p.M, groups}, ScalarType::Float, x);
  if (count == 0) return sums;
  const bool whole =
      p.group_size % 128 == 0 || p.group_size == 64 || p.group_size == 32 || p.group_size == 16 || p.group_size == 8;
  const bool wide = whole && is_aligned(x, 16);
  const int64_t lanes = wide ? std::min<int64_t>(p.group_size / 8, kLanes) : kLanes;
  static const Module &wide_kernel = module("int4_correction.lanes", "group_sums_wide"),
                      &any_kernel = module("int4_correction.lanes", "group_sums_any");
  launch(queue, wide ? wide_kernel : any_kernel, line(count * lanes), static_cast<float*>(sums.mutable_data_ptr()),
         x.const_data_ptr(), count, static_cast<int>(p.group_size), element(p.input));
  return sums;
}

}  // namespace aoext::xpu
