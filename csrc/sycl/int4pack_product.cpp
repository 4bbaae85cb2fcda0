#include "sycl/int4pack_product.h"

#include <algorithm>

#include "common/sizes.h"
#include "sycl/device.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kColumns = 8;  // of y for a work-group: kernels/int4pack_mm.cpp

}  // namespace

Int4PackPlan plan_int4pack(const Int4PackLinear& linear, const sycl::queue& queue) {
  const Device& device = device_of(queue);
  Int4PackPlan plan{linear.M == 1 ? 1 : linear.M <= 4 ? 4 : 8, 1};
  const int64_t work_groups = ceil_div(linear.M, plan.rows) * (linear.N / kColumns);
  const int64_t most =
      std::min<int64_t>({kMaxSubGroups, ceil_div(linear.K, kBlock), static_cast<int64_t>(device.work_group) / kLanes});
  while (plan.sub_groups * 2 <= most && plan.sub_groups * work_groups < device.threads) plan.sub_groups *= 2;
  return plan;
}

void launch_int4pack(sycl::queue& queue, const Int4PackLinear& linear) {
  const Int4PackPlan plan = plan_int4pack(linear, queue);
  const auto width = static_cast<size_t>(plan.sub_groups * kLanes);
  const sycl::nd_range<2> range(
      {static_cast<size_t>(ceil_div(linear.M, plan.rows)), static_cast<size_t>(linear.N / kColumns) * width}, {1, width});
  launch(queue, {kInt4PackImage, "int4pack_mm_m" + std::to_string(plan.rows)}, range, linear.y, linear.x, linear.weight,
         linear.scale_and_zero, linear.M, linear.N, static_cast<int>(linear.K), static_cast<int>(linear.group_size),
         static_cast<int>(linear.inner_k_tiles));
}

}  // namespace aoext::xpu
