// Weight-only int4 on an XPU.
#include "common/dispatcher.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

bool aligned(const Tensor& t, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0; }

Tensor linear(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
              const OptionalTensor& bias) {
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input);
  sycl::queue& queue = current_queue(input);
  const Plan plan = plan_int4(p, device_of(queue), aligned(x, 16) && aligned(weight, 16));
  const int64_t width = int64_t{plan.sub_groups} * 16;
  const sycl::nd_range<2> range({static_cast<size_t>((p.M + plan.rows - 1) / plan.rows),
                                 static_cast<size_t>((p.N + plan.columns - 1) / plan.columns * width)},
                                {1, static_cast<size_t>(width)});
  launch(queue, plan.kernel, range, y.mutable_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(), scale.const_data_ptr(),
         zero_point.const_data_ptr(), bias ? bias->const_data_ptr() : nullptr, p.M, p.N, static_cast<int>(p.K),
         static_cast<int>(p.group_size), int{element(p.output)}, int{element(p.scale)}, bias ? int{element(bias->scalar_type())} : 0);
  return y;
}

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  return linear(check_bf16i4bf16_rowwise(input, weight, scale, zero_point), input, weight, scale, zero_point, std::nullopt);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("bf16i4bf16_rowwise", TORCH_BOX(&bf16i4bf16_rowwise)); }

}  // namespace aoext::xpu
