// Dynamic quantisation of the input, then the scaled product: the two kernels in one call.
#include "cpu/explain.h"
#include "cpu/quantize.h"
#include "cpu/scaled_mm.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalIntegers& input_block,
                     const OptionalIntegers& block_size, const OptionalTensor& zero_point, const OptionalTensor& bias,
                     const OptionalTensor& offsets, int64_t code, std::optional<ScalarType> input_dtype) {
  LinearProblem p =
      check_scaled_linear(input, weight, scale, input_block, block_size, zero_point, bias, offsets, code, input_dtype);
  const auto [values, input_scale] = quantize_rows(p, input, p.quantized);
  p.input = p.quantized;
  const Operands of{values, {weight, scale, pointer_to(zero_point)}, &input_scale, pointer_to(bias), pointer_to(offsets)};
  const OptionalTensor y = scaled_mm(p, of);
  return y ? *y : generic::scaled_product(p, of);
}

}  // namespace

AOEXT_REGISTER(CPU, scaled_linear, &explain, &scaled_linear)

}  // namespace aoext::cpu
