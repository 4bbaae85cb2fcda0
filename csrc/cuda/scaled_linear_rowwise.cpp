// Dynamic quantisation of the input, and the scaled product, on CUDA: in one launch or in two.
#include "cuda/operands.h"
#include "cuda/quantize_rowwise.h"
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const RowwisePlan plan = plan_scaled_linear(p, device_of(input), are_aligned({&weight}));
  if (std::holds_alternative<Generic>(plan.kernel)) return generic::scaled_linear_rowwise(input, weight, weight_scale, bias);
  if (plan.quantizes) return rowwise_by(plan, p, {input, weight, nullptr, &weight_scale, bias});
  const auto [values, scale] = quantize_rowwise(input, storage(p.code));
  p.input = storage(p.code);
  return rowwise_by(plan, p, {values, weight, &scale, &weight_scale, bias});
}

}  // namespace

AOEXT_REGISTER(CUDA, scaled_linear_rowwise, &explain_rowwise<plan_scaled_linear>, &scaled_linear_rowwise)

}  // namespace aoext::cuda
