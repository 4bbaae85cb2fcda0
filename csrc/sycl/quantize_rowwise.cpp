#include "sycl/quantize_rowwise.h"

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

constexpr int kMaxTeam = 64, kKept = 2, kWide = 8;  // of kernels/quantize_rowwise.cpp

}  // namespace

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  sycl::queue& queue = current_queue(input);
  if (p.K > std::numeric_limits<int>::max() / 2 || !serves(queue, kQuantizeImage)) return generic::quantize_rowwise(input, dtype);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);

  const bool wide = is_aligned(x, 16) && p.K % kWide == 0;
  const int64_t pieces = wide ? p.K / kWide : p.K;
  const int64_t most = std::min<int64_t>(kMaxTeam, static_cast<int64_t>(device_of(queue).work_group) / kLanes);
  const int64_t sub_groups = std::min(ceil_div(pieces, kKept * kLanes), most);
  const int64_t rows = std::clamp<int64_t>(kSubGroups / sub_groups, 1, std::max<int64_t>(most / sub_groups, 1));
  const auto width = static_cast<size_t>(rows * sub_groups * kLanes);
  const auto work_groups = static_cast<size_t>(std::min(ceil_div(p.M, rows), kMaxWorkGroups));
  launch(queue, {kQuantizeImage, wide ? "quantize_rowwise_wide" : "quantize_rowwise_any"},
         sycl::nd_range<2>({work_groups, width}, {1, width}), values.mutable_data_ptr(),
         static_cast<float*>(scales.mutable_data_ptr()), x.const_data_ptr(), p.M, static_cast<int>(p.K), int{element(p.input)},
         int{element(p.output)}, static_cast<int>(sub_groups));
  return {values, scales};
}

AOEXT_REGISTER(XPU, quantize_rowwise, &explain_one_pass, &quantize_rowwise)

}  // namespace aoext::xpu
