// Weight-only int4 on CUDA.
#include "common/dispatcher.h"
#include "cuda/int4_product.h"
#include "cuda/operands.h"
#include "generic/int4_rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

using generic::Int4Weight;

Tensor converted(const Tensor& t, ScalarType dtype) { return t.scalar_type() == dtype ? t : aten::to(t, dtype); }

// What the operator does not copy to where it is aligned: the input is not among it.
Int4Plan plan_of(const LinearProblem& p, const Int4Weight& w) {
  return plan_int4(p, device_of(w.weight), are_aligned({&w.weight, &w.scale, &w.zero_point}));
}

// Null where no kernel of this folder serves.
OptionalTensor linear(const LinearProblem& p, const Tensor& input, const Int4Weight& w, const OptionalTensor& bias) {
  const Tensor x = aligned(input);
  const Int4Plan plan = plan_of(p, w);
  if (std::holds_alternative<Generic>(plan.kernel)) return std::nullopt;
  const Launch launch(input);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  OptionalTensor dense_bias;
  if (bias) dense_bias = aten::contiguous(*bias);
  const Tensor scale = converted(w.scale, plan.scale);
  const Tensor zero_point = converted(w.zero_point, plan.scale);

  Int4Linear raw = int4_linear(p);
  raw.x = x.const_data_ptr();
  raw.weight = static_cast<const uint8_t*>(w.weight.const_data_ptr());
  raw.scale = scale.const_data_ptr(), raw.zero_point = zero_point.const_data_ptr(), raw.scale_type = element(plan.scale);
  raw.bias = data_of(dense_bias);
  raw.y = y.mutable_data_ptr();

  const OptionalTensor space = workspace(int4_workspace(raw, plan), y);
  check(launch_int4(raw, plan, data_of(space), launch.stream()), "bf16i4bf16_rowwise");
  return y;
}

Explanation explain_product(const Call& call) {
  return explain(plan_of(call.problem, {call.tensor(1), call.tensor(2), call.tensor(3)}));
}

}  // namespace

AOEXT_REGISTER(CUDA, bf16i4bf16_rowwise, &explain_product, &generic::int4_rowwise<linear>)
AOEXT_REGISTER(CUDA, bf16i4bf16_rowwise_bias, &explain_product, &generic::int4_rowwise_bias<linear>)

}  // namespace aoext::cuda
