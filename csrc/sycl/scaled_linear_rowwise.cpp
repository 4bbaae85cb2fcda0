// Dynamic quantisation of the input, then the scaled product: the two operators of this device in one call.
#include "sycl/quantize_rowwise.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {
namespace {

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const auto [values, scale] = quantize_rowwise(input, p.weight);
  return scaled_mm_rowwise(values, weight, scale, weight_scale, bias, p.output);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("scaled_linear_rowwise", TORCH_BOX(&scaled_linear_rowwise)); }

}  // namespace aoext::xpu
