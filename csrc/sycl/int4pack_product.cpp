#include "sycl/int4pack_product.h"

#include "sycl/launch.h"
#include "sycl/split.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kColumns = 8;  // of y for a work-group: kernels/int4pack_mm.cpp
constexpr const char* kInt4PackImage = "int4pack_mm.lanes";

}  // namespace

Int4PackPlan plan_int4pack(const Int4PackLinear& linear, const Device& device) {
  const int rows = linear.M == 1 ? 1 : linear.M <= 4 ? 4 : 8;
  return {rows, split(device, ceil_div(linear.M, rows) * (linear.N / kColumns), linear.K)};
}

void launch_int4pack(sycl::queue& queue, const Int4PackPlan& plan, const Int4PackLinear& linear) {
  static const Module* const kernels[] = {&module(kInt4PackImage, "int4pack_mm_m1"), &module(kInt4PackImage, "int4pack_mm_m4"),
                                          &module(kInt4PackImage, "int4pack_mm_m8")};
  const auto width = static_cast<size_t>(plan.sub_groups * kLanes);
  const sycl::nd_range<2> range(
      {static_cast<size_t>(ceil_div(linear.M, plan.rows)), static_cast<size_t>(linear.N / kColumns) * width}, {1, width});
  launch(queue,
         *kernels[plan.rows == 1   ? 0
                  : plan.rows == 4 ? 1
                                   : 2],
         range, linear.y, linear.x, linear.weight, linear.scale_and_zero, linear.M, linear.N, static_cast<int>(linear.K),
         static_cast<int>(linear.group_size), static_cast<int>(linear.inner_k_tiles));
}

}  // namespace aoext::xpu
