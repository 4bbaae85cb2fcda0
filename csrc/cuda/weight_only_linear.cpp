// Weight-only products on CUDA. Offsets of experts stay on the device, so calls go into a CUDA graph, whatever rows experts have
// then.
#include "cuda/packed.h"
#include "cuda/plans.h"
#include "cuda/rowwise.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

OptionalTensor int4(const LinearProblem& p, const Operands& of) {
  const Int4Plan plan = plan_int4(p, device_of(of.input), is_aligned(of.weight));
  if (is_generic(plan.kernel)) return std::nullopt;
  const Launch launch(of.input);
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(of.input);
  const Tensor scale = converted(of.weight.scale, plan.scale), zero_point = converted(*of.weight.zero_point, plan.scale);
  const OptionalTensor bias = dense(of.bias);

  Int4Linear raw = int4_linear(p, plan.scale);
  raw.x = x.const_data_ptr();
  raw.weight = static_cast<const uint8_t*>(of.weight.values.const_data_ptr());
  raw.scale = scale.const_data_ptr(), raw.zero_point = zero_point.const_data_ptr();
  raw.bias = data_of(bias);
  raw.y = y.mutable_data_ptr();
  raw.ends = ends_of(of);
  launch_planned("weight_only_linear", plan.kernel, raw, y, launch.stream());
  return y;
}

OptionalTensor blocks(const LinearProblem& p, const Operands& of) {
  const Weight& w = of.weight;
  const BlocksPlan plan = plan_blocks(p, device_of(of.input), is_aligned(w));
  if (is_generic(plan.kernel)) return std::nullopt;
  const Launch launch(of.input);
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(of.input);
  // Copied where they are not aligned, as a weight is not.
  const Tensor scale = std::holds_alternative<Fp4DecodeConfig>(plan.kernel) ? aligned(w.scale) : w.scale;
  const OptionalTensor table = dense(w.table), global_scale = dense(w.global_scale), bias = dense(of.bias);

  BlockLinear raw = block_linear(p);
  raw.x = x.const_data_ptr(), raw.weight = w.values.const_data_ptr(), raw.block_scale = scale.const_data_ptr();
  raw.table = static_cast<const float*>(data_of(table)), raw.global_scale = static_cast<const float*>(data_of(global_scale));
  if (w.zero_point != nullptr) raw.zero = static_cast<const int8_t*>(w.zero_point->const_data_ptr());
  raw.bias = data_of(bias), raw.ends = ends_of(of);
  raw.y = y.mutable_data_ptr();
  launch_planned("weight_only_linear", plan.kernel, raw, y, launch.stream());
  return y;
}

// Null where no kernel of this folder serves.
OptionalTensor weight_only(const LinearProblem& p, const Operands& of) {
  if (is_in_bytes(p.code)) return packed(p, of);
  if (p.code == Code::int4) return int4(p, of);
  return is_rowwise(p) ? rowwise(p, of) : blocks(p, of);
}

Explanation explain_weight_only(const Call& call) {
  const bool aligned = is_weight_aligned(call);
  return with_weight_only_plan(call.problem, device_of(call.tensor(0)), aligned,
                               [&](const auto& plan) { return explain(plan, call.problem); });
}

}  // namespace

AOEXT_REGISTER(CUDA, weight_only_linear, &explain_weight_only, &generic::weight_only_linear_by<weight_only>)
AOEXT_REGISTER(CUDA, bf16i4bf16_rowwise, &explain_weight_only, &generic::bf16i4bf16_rowwise_by<weight_only>)
AOEXT_REGISTER(CUDA, bf16i4bf16_rowwise_bias, &explain_weight_only, &generic::bf16i4bf16_rowwise_bias_by<weight_only>)

}  // namespace aoext::cuda
