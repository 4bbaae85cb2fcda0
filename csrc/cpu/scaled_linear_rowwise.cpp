// Dynamic quantisation of the input, then the scaled product: the two kernels in one call.
#include "cpu/plan.h"
#include "cpu/quantize_rowwise.h"
#include "cpu/scaled_mm_rowwise.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const auto [values, scale] = quantize_rowwise(input, storage(p.code));
  return scaled_mm_rowwise(values, weight, scale, weight_scale, bias, p.output);
}

}  // namespace

AOEXT_REGISTER(CPU, scaled_linear_rowwise, &explain<plan_scaled>, &scaled_linear_rowwise)

}  // namespace aoext::cpu
