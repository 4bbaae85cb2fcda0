// 8-bit input by int4 weight on an XPU.
#include "common/dispatcher.h"
#include "generic/register.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  sycl::queue& queue = current_queue(input);
  const Tensor x = aten::contiguous(input), rows = aten::contiguous(input_scale);
  const Plan plan = plan_scaled_int4(p, queue, alignment_of({&x, &weight}));
  if (plan.algorithm == Algorithm::generic)
    return generic::scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const OptionalTensor dense_bias = contiguous(bias);
  if (plan.algorithm == Algorithm::tile) {
    launch(queue, plan.kernel, tile_range(plan, p), y.mutable_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(),
           static_cast<const float*>(rows.const_data_ptr()), scale.const_data_ptr(), zero_point.const_data_ptr(),
           data_of(dense_bias), p.M, p.N, static_cast<int>(p.K), static_cast<int>(p.group_size), int{element(p.output)},
           int{element(p.scale)}, int{element(p.bias)});
  } else {
    linear_any(queue, p, y, x, weight, &scale, &zero_point, &rows, dense_bias);
  }
  return y;
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_mm_int4, &explain<plan_scaled_int4>, &scaled_mm_int4)

}  // namespace aoext::xpu
