// Products of an input that is quantised already, on CUDA.
#include "cuda/packed.h"
#include "cuda/plans.h"
#include "cuda/rowwise.h"
#include "cuda/scaled.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

// Null where no kernel of this folder serves.
OptionalTensor scaled(const LinearProblem& p, const Operands& of) {
  if (is_in_bytes(p.code)) return packed(p, of);
  if (is_rowwise(p)) return rowwise(p, of);
  const ScaledPlan plan = plan_scaled(p, device_of(of.input), is_aligned(of.weight));
  if (plan.is_generic()) return std::nullopt;
  return scaled_by(plan, p, of);
}

Explanation explain_scaled(const Call& call) {
  return with_scaled_plan(call.problem, device_of(call.tensor(0)), is_weight_aligned(call),
                          [&](const auto& plan) { return explain(plan, call.problem); });
}

}  // namespace

AOEXT_REGISTER(CUDA, scaled_mm, &explain_scaled, &generic::scaled_mm_by<scaled>)
AOEXT_REGISTER(CUDA, scaled_mm_rowwise, &explain_scaled, &generic::scaled_mm_rowwise_by<scaled>)

}  // namespace aoext::cuda
