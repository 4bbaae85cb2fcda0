// Dynamic quantisation of the input by blocks, and the scaled product, on CUDA.
#include "cuda/quantize_blockwise.h"
#include "cuda/scaled.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const Integers& input_block,
                               const Integers& weight_block, const OptionalTensor& bias) {
  LinearProblem p = check_scaled_linear_blockwise(input, weight, weight_scale, input_block, weight_block, bias);
  p.input = storage(p.code);
  const ScaledPlan plan = plan_of(p, {input, weight, weight_scale, nullptr, nullptr, bias});
  const int64_t pitch = scale_pitch_of(plan, p);
  const auto [values, scale] = quantize_blockwise(input, p.input, input_block, p.power_of_two, pitch);
  const ScaledOperands operands{values, weight, weight_scale, &scale, nullptr, bias, {}, pitch};
  if (const OptionalTensor y = scaled_by(plan, p, operands)) return *y;
  return generic::scaled_mm_blockwise(values, weight, scale, weight_scale, input_block, weight_block, bias, p.output);
}

Explanation explain_product(const Call& call) { return explain_scaled(call, 1, 2); }

}  // namespace

AOEXT_REGISTER(CUDA, scaled_linear_blockwise, &explain_product, &scaled_linear_blockwise)

}  // namespace aoext::cuda
