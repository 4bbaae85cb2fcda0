// 8-bit input × int4 weight on CUDA.
#include "cuda/scaled.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  if (const OptionalTensor y = scaled(p, {input, weight, scale, &input_scale, &zero_point, bias})) return *y;
  return generic::scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
}

Explanation explain_product(const Call& call) { return explain_scaled(call, 1, 3); }

}  // namespace

AOEXT_REGISTER(CUDA, scaled_mm_int4, &explain_product, &scaled_mm_int4)

}  // namespace aoext::cuda
