// 8-bit input by int4 weight on an XPU.
#include "common/dispatcher.h"
#include "generic/register.h"
#include "sycl/blocks_product.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"

namespace aoext::xpu {
namespace {

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  sycl::queue& queue = current_queue(input);
  if (!any_serves(queue, p)) return generic::scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input), rows = aten::contiguous(input_scale);
  linear_any(queue, p, y, x, weight, &scale, &zero_point, &rows, contiguous(bias));
  return y;
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_mm_int4, &explain_any, &scaled_mm_int4)

}  // namespace aoext::xpu
