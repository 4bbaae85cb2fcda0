// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/products.h"
#include "generic/register.h"
#include "sycl/linear.h"
#include "sycl/quantize.h"

namespace aoext::xpu {
namespace {

Tensor scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalIntegers& input_block,
                     const OptionalIntegers& block_size, const OptionalTensor& zero_point, const OptionalTensor& bias,
                     const OptionalTensor& offsets, int64_t code, std::optional<ScalarType> input_dtype) {
  LinearProblem p =
      check_scaled_linear(input, weight, scale, input_block, block_size, zero_point, bias, offsets, code, input_dtype);
  const auto [values, input_scale] = quantized(p, input, p.quantized);
  p.input = p.quantized;
  const Operands operands{values, {weight, scale, pointer_to(zero_point)}, &input_scale, pointer_to(bias), pointer_to(offsets)};
  const OptionalTensor y = linear(p, operands);
  return y ? *y : generic::scaled_product(p, operands);
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_linear, &explain_quantized, &scaled_linear)

}  // namespace aoext::xpu
