// int4 weights to high precision on an XPU.
#include <algorithm>
#include <limits>

#include "common/checks.h"
#include "common/dispatcher.h"
#include "common/sizes.h"
#include "generic/register.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  constexpr const char* kImage = "dequantize_int4.lanes";
  constexpr int64_t kRows = 32;  // of kernels/dequantize_int4.cpp
  const LinearProblem p = check_dequantize_int4(weight, scale, zero_point, dtype);
  sycl::queue& queue = current_queue(weight);
  if (p.K > std::numeric_limits<int>::max() / 2 || !serves(queue, kImage))
    return generic::dequantize_int4(weight, scale, zero_point, dtype);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  const bool wide = p.group_size % 8 == 0 && is_aligned(weight, 4) && is_aligned(out, 16);
  const int64_t sub_groups = ceil_div(p.K, kLanes * (wide ? 8 : 2));
  const auto width = static_cast<size_t>(kLanes * std::min(sub_groups, kSubGroups));
  const auto columns = static_cast<size_t>(ceil_div(sub_groups * kLanes, width)) * width;
  launch(queue, {kImage, wide ? "dequantize_int4_wide" : "dequantize_int4_any"},
         sycl::nd_range<2>({static_cast<size_t>(ceil_div(p.N, kRows)), columns}, {1, width}), out.mutable_data_ptr(),
         weight.const_data_ptr(), scale.const_data_ptr(), zero_point.const_data_ptr(), p.N, static_cast<int>(p.K),
         static_cast<int>(p.group_size), int{element(out.scalar_type())}, int{element(p.scale)});
  return out;
}

}  // namespace

AOEXT_REGISTER(XPU, dequantize_int4, &explain_one_pass, &dequantize_int4)

}  // namespace aoext::xpu
