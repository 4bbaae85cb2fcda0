#include "sycl/linear_any.h"

#include <algorithm>

#include "common/sizes.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"
#include "sycl/operands.h"

namespace aoext::xpu {
namespace {

const void* data_of(const Tensor* t) { return t == nullptr ? nullptr : t->const_data_ptr(); }

sycl::nd_range<2> range_of(const LinearProblem& p) {
  constexpr int64_t kRows = 4, kColumns = 2;  // of y for a sub-group: kernels/linear_any.cpp
  // Sub-groups of a work-group read the same rows of x.
  const int64_t sub_groups = ceil_div(p.N, kColumns), in_a_work_group = std::min(sub_groups, kSubGroups);
  const auto width = static_cast<size_t>(in_a_work_group * kLanes);
  return {{static_cast<size_t>(ceil_div(p.M, kRows)), static_cast<size_t>(ceil_div(sub_groups, in_a_work_group)) * width},
          {1, width}};
}

}  // namespace

void linear_any(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Tensor& x, const Tensor& weight,
                const Tensor* scale, const Tensor* zero_point, const Tensor* input_scale, const OptionalTensor& bias) {
  launch(queue, {"linear_any.lanes", "linear_any"}, range_of(p), y.mutable_data_ptr(), x.const_data_ptr(),
         weight.const_data_ptr(), data_of(scale), data_of(zero_point), static_cast<const float*>(data_of(input_scale)),
         bias ? bias->const_data_ptr() : nullptr, p.M, p.N, static_cast<int>(p.K), static_cast<int>(p.group_size),
         int{element(x.scalar_type())}, int{element(weight.scalar_type())}, int{element(y.scalar_type())},
         scale == nullptr ? 0 : int{element(scale->scalar_type())}, bias ? int{element(bias->scalar_type())} : 0);
}

void linear_any_blocks(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const BlocksOperands& o) {
  const auto floats = [](const Tensor* t) { return static_cast<const float*>(data_of(t)); };
  launch(queue, {"linear_any.lanes", "linear_any_blocks"}, range_of(p), y.mutable_data_ptr(), o.x.const_data_ptr(),
         o.weight.const_data_ptr(), floats(o.table), o.scale.const_data_ptr(), floats(o.global_scale), floats(o.input_scale),
         data_of(o.bias), p.M, p.N, p.block_n, static_cast<int>(p.K), static_cast<int>(p.group_size),
         static_cast<int>(o.input_scale == nullptr ? p.K : p.input_group_size), int{element(p.input)},
         int{element(storage(p.code))}, int{element(p.output)}, int{element(p.scale)}, int{element(p.bias)});
}

}  // namespace aoext::xpu
