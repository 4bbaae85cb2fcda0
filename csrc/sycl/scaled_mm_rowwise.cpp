// 8-bit × 8-bit with scales, bias and output dtype in the epilogue, on an XPU.
#include "generic/generic.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  const OptionalTensor y = rowwise(p, {input, weight, &input_scale, &weight_scale, bias});
  return y ? *y : generic::scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
}

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("scaled_mm_rowwise", TORCH_BOX(&scaled_mm_rowwise)); }

}  // namespace aoext::xpu
