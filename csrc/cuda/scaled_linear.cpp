// Dynamic quantisation of the input and the scaled product on CUDA: at once where a kernel does both, or one after the other.
#include "cuda/packed.h"
#include "cuda/plans.h"
#include "cuda/rowwise.h"
#include "cuda/scaled.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

LinearProblem quantized(LinearProblem p) {
  p.input = p.quantized;
  return p;
}

// Null where no kernel of this folder serves, here and below.
OptionalTensor by_rows(const LinearProblem& p, const Operands& of) {
  const RowwisePlan plan = plan_scaled_linear(p, device_of(of.input), is_aligned(of.weight));
  if (is_generic(plan.kernel)) return std::nullopt;
  if (plan.quantizes) return rowwise_by(plan, p, of);
  const QuantizedRows rows = quantize_rows(of.input, p.quantized);
  return rowwise_by(plan, quantized(p), {rows.values, of.weight, &rows.scales, of.bias, of.offsets});
}

OptionalTensor by_packed(const LinearProblem& of_floats, const Operands& of) {
  const LinearProblem p = quantized(of_floats);
  if (is_generic(plan_packed(p, device_of(of.input), is_aligned(of.weight)).kernel)) return std::nullopt;
  if (p.input_group_size == p.K) {
    const QuantizedRows rows = quantize_rows(of.input, p.input);
    return packed(p, {rows.values, of.weight, &rows.scales, of.bias, of.offsets});
  }
  const auto [values, scales] = quantize_blocks(of.input, p.input, p.input_group_size, p.power_of_two, 0);
  return packed(p, {values, of.weight, &scales, of.bias, of.offsets});
}

OptionalTensor by_blocks(const LinearProblem& of_floats, const Operands& of) {
  const LinearProblem p = quantized(of_floats);
  const ScaledPlan plan = plan_scaled(p, device_of(of.input), is_aligned(of.weight));
  if (plan.is_generic()) return std::nullopt;
  if (quantizes(plan)) return scaled_by(plan, p, of);
  if (p.code == Code::int4) {
    const QuantizedRows rows = quantize_rows(of.input, p.input, form_of(plan, p));
    return scaled_by(plan, p, {rows.values, of.weight, &rows.scales, of.bias, of.offsets}, {rows.sums});
  }
  const int64_t pitch = scale_pitch_of(plan, p);
  const auto [values, scales] = quantize_blocks(of.input, p.input, p.input_group_size, p.power_of_two, pitch);
  return scaled_by(plan, p, {values, of.weight, &scales, of.bias, of.offsets}, {{}, pitch});
}

Tensor product(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code, const OptionalTensor& bias,
               const OptionalIntegers& input_block, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
               const OptionalTensor& offsets, std::optional<ScalarType> input_dtype) {
  const LinearProblem p =
      check_scaled_linear(input, weight, scale, code, bias, input_block, block_size, zero_point, offsets, input_dtype);
  const Operands of{input, {weight, scale, pointer_to(zero_point)}, nullptr, pointer_to(bias), pointer_to(offsets)};
  if (p.experts > 0) generic::check_offsets("ao::scaled_linear", p, of);
  OptionalTensor y;
  if (knows(Key::CUDA, p.code)) y = is_in_bytes(p.code) ? by_packed(p, of) : is_rowwise(p) ? by_rows(p, of) : by_blocks(p, of);
  if (y) return *y;
  return generic::scaled_linear(input, weight, scale, code, bias, input_block, block_size, zero_point, offsets, input_dtype);
}

Explanation explain_product(const Call& call) {
  return with_scaled_linear_plan(call.problem, device_of(call.tensor(0)), is_weight_aligned(call),
                                 [](const auto& plan, const LinearProblem& p, bool quantizes) {
                                   Explanation e = explain(plan, p);
                                   return quantizes ? e.with("quantizes_input", 1) : e;
                                 });
}

}  // namespace

AOEXT_REGISTER(CUDA, scaled_linear, &explain_product, &product)

}  // namespace aoext::cuda
