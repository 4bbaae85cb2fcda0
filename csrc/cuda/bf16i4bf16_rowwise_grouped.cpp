// Weight-only int4 of experts on CUDA. Offsets stay on the device, so calls go into a CUDA graph, whatever rows experts have
// then.
#include "common/dispatcher.h"
#include "cuda/kernels/int4_grouped_any.h"
#include "cuda/operands.h"
#include "cuda/plan_grouped_int4.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor converted(const Tensor& t, ScalarType dtype) { return t.scalar_type() == dtype ? t : aten::to(t, dtype); }

cudaError_t launch_kernel(const GroupedInt4Linear& p, const GroupedInt4Kernel& kernel, cudaStream_t stream) {
  return std::visit(Overloaded{[](const Generic&) { return cudaErrorNotSupported; },
                               [&](const GroupedInt4Any&) { return launch_int4_grouped_any(p, stream); },
                               [&](const GroupedRingConfig& c) { return launch_int4_grouped_ring(p, c, stream); },
                               [&](const GroupedWgmmaConfig& c) { return launch_int4_grouped_wgmma(p, c, stream); }},
                    kernel);
}

Tensor product(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point, const Tensor& offsets,
               const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_grouped(input, weight, scale, zero_point, offsets, bias);
  const GroupedInt4Plan plan = plan_grouped_int4(p, device_of(weight), are_aligned({&weight, &scale, &zero_point}));
  if (std::holds_alternative<Generic>(plan.kernel))
    return generic::bf16i4bf16_rowwise_grouped(input, weight, scale, zero_point, offsets, bias);
  const Launch launch(input);
  const Tensor x = aligned(input);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  OptionalTensor dense_bias;
  if (bias) dense_bias = aten::contiguous(*bias);
  const Tensor plan_scale = converted(scale, plan.scale), plan_zero_point = converted(zero_point, plan.scale);

  GroupedInt4Linear raw = grouped_int4_linear(p);
  raw.x = x.const_data_ptr();
  raw.weight = static_cast<const uint8_t*>(weight.const_data_ptr());
  raw.scale = plan_scale.const_data_ptr(), raw.zero_point = plan_zero_point.const_data_ptr();
  raw.scale_type = element(plan.scale);
  raw.bias = data_of(dense_bias);
  raw.y = y.mutable_data_ptr();
  raw.ends = static_cast<const int32_t*>(offsets.const_data_ptr());
  check(launch_kernel(raw, plan.kernel, launch.stream()), "bf16i4bf16_rowwise_grouped");
  return y;
}

Explanation explain_product(const Call& call) {
  const bool aligned = are_aligned({&call.tensor(1), &call.tensor(2), &call.tensor(3)});
  return explain(plan_grouped_int4(call.problem, device_of(call.tensor(1)), aligned));
}

}  // namespace

AOEXT_REGISTER(CUDA, bf16i4bf16_rowwise_grouped, &explain_product, &product)

}  // namespace aoext::cuda
