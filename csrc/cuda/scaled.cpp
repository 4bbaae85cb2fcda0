#include "cuda/scaled.h"

#include "common/dispatcher.h"
#include "cuda/int4_product.h"
#include "cuda/kernels/scaled_any.h"
#include "cuda/kernels/widen.h"

namespace aoext::cuda {
namespace {

Tensor converted(const Tensor& t, ScalarType from, ScalarType to) { return from == to ? t : aten::to(t, to); }

bool are_weights_aligned(const Tensor& weight, const Tensor& scale, const Tensor* zero_point) {
  return are_aligned({&weight}) && (zero_point == nullptr || are_aligned({&scale, zero_point}));
}

// Codes as numbers of the result's 16 bits, unless they are that.
Tensor widened(const LinearProblem& p, const Tensor& x, cudaStream_t stream) {
  if (x.scalar_type() == p.output) return x;
  const Tensor wide = aten::empty({p.M, p.K}, p.output, x);
  check(launch_widen({x.const_data_ptr(), wide.mutable_data_ptr(), p.M * p.K, element(p.input), element(p.output)}, stream),
        "scaled");
  return wide;
}

// By a kernel of weight-only int4.
void launch_weight_only(const LinearProblem& p, const Int4Plan& plan, const ScaledLinear& raw, const Tensor& x, const Tensor& y,
                        cudaStream_t stream) {
  Int4Linear product = int4_linear(p);
  product.quantizes = raw.x_scale == nullptr;
  if (product.quantizes || reads_codes(plan, p.M)) product.code = element(p.input);
  const Tensor as_read = product.code == product.type ? widened(p, x, stream) : x;
  product.x = as_read.const_data_ptr();
  product.weight = static_cast<const uint8_t*>(raw.weight);
  product.scale = raw.scale, product.zero_point = raw.zero, product.scale_type = raw.scale_type;
  product.bias = raw.bias, product.row_scale = raw.x_scale, product.y = raw.y;
  const OptionalTensor space = workspace(int4_workspace(product, plan), y);
  check(launch_int4(product, plan, data_of(space), stream), "scaled");
}

cudaError_t launch_kernel(const ScaledLinear& p, const ScaledKernel& kernel, void* workspace, cudaStream_t stream) {
  return std::visit(Overloaded{[](const Generic&) { return cudaErrorNotSupported; },
                               [&](const ScaledAny&) { return launch_scaled_any(p, stream); },
                               [&](const ScaledWgmmaConfig& c) { return launch_scaled_wgmma(p, c, workspace, stream); },
                               [](const auto&) { return cudaErrorNotSupported; }},
                    kernel);
}

}  // namespace

ScaledPlan plan_of(const LinearProblem& p, const ScaledOperands& operands) {
  const bool aligned = are_weights_aligned(operands.weight, operands.scale, operands.zero_point);
  return plan_scaled(p, device_of(operands.input), aligned);
}

RowsForm form_of(const ScaledPlan& plan, const LinearProblem& p) {
  if (const auto weight_only_plan = weight_only(plan)) return {.wide = !reads_codes(*weight_only_plan, p.M)};
  if (std::holds_alternative<ScaledWgmmaConfig>(plan.kernel)) return {.sums = scaled_sums(scaled_linear(p, plan.scale))};
  return {};
}

int64_t scale_pitch_of(const ScaledPlan& plan, const LinearProblem& p) {
  const auto* const config = std::get_if<ScaledWgmmaConfig>(&plan.kernel);
  return config == nullptr ? 0 : scaled_wgmma_pitch(scaled_linear(p, plan.scale), *config);
}

OptionalTensor scaled(const LinearProblem& p, const ScaledOperands& operands) {
  return scaled_by(plan_of(p, operands), p, operands);
}

OptionalTensor scaled_by(const ScaledPlan& plan, const LinearProblem& p, const ScaledOperands& operands) {
  if (std::holds_alternative<Generic>(plan.kernel)) return std::nullopt;
  const Launch launch(operands.input);
  const Tensor y = aten::empty(output_sizes(operands.input, p.N), p.output, operands.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(operands.input);
  const Tensor scale = converted(operands.scale, p.scale, plan.scale);
  OptionalTensor x_scale, zero_point, bias;
  if (operands.input_scale != nullptr) x_scale = aten::contiguous(*operands.input_scale);
  if (operands.zero_point != nullptr) zero_point = converted(*operands.zero_point, p.scale, plan.scale);
  if (operands.bias) bias = aten::contiguous(*operands.bias);

  ScaledLinear raw = scaled_linear(p, plan.scale);
  raw.x = x.const_data_ptr(), raw.weight = operands.weight.const_data_ptr();
  raw.x_scale = static_cast<const float*>(data_of(x_scale)), raw.x_scale_pitch = operands.input_scale_pitch;
  raw.scale = scale.const_data_ptr(), raw.zero = data_of(zero_point), raw.bias = data_of(bias);
  raw.y = y.mutable_data_ptr();

  if (const auto weight_only_plan = weight_only(plan)) {
    launch_weight_only(p, *weight_only_plan, raw, x, y, launch.stream());
    return y;
  }
  const auto* const config = std::get_if<ScaledWgmmaConfig>(&plan.kernel);
  if (config != nullptr && operands.sums) raw.sums = scaled_sums(raw), raw.sums.sums = data_of(operands.sums);
  const size_t bytes = config == nullptr ? 0 : scaled_wgmma_workspace(raw, *config);
  const OptionalTensor space = workspace(bytes, y);
  check(launch_kernel(raw, plan.kernel, data_of(space), launch.stream()), "scaled");
  return y;
}

Explanation explain_scaled(const Call& call, size_t weight, size_t scale) {
  LinearProblem p = call.problem;
  const bool int4 = p.code == Code::int4;
  const bool dynamic = p.input == ScalarType::BFloat16 || p.input == ScalarType::Half || p.input == ScalarType::Float;
  if (dynamic) p.input = int4 ? ScalarType::Char : storage(p.code);
  const Tensor* const zero_point = int4 ? &call.tensor(scale + 1) : nullptr;
  const ScaledPlan plan = plan_of(p, {call.tensor(0), call.tensor(weight), call.tensor(scale), nullptr, zero_point, {}});
  Explanation e = explain(plan);
  if (dynamic && quantizes(plan)) e.with("quantizes_input", 1);
  return e;
}

}  // namespace aoext::cuda
