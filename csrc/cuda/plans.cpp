// Plans from Python: what a GPU would be given, and forcing one (aoext.ops.plan, aoext.ops.with_plan).
#include <map>

#include "common/by_name.h"
#include "common/library.h"
#include "cuda/forced.h"
#include "cuda/plan.h"
#include "cuda/plan_rowwise.h"
#include "cuda/plan_tinygemm.h"

namespace aoext::cuda {
namespace {

template <RowwisePlan (*kPlan)(const LinearProblem&, const Device&, bool)>
std::string rowwise_text(const LinearProblem& p, const Device& device) {
  return text(kPlan(p, device, true));
}
std::string int4_text(const LinearProblem& p, const Device& device) { return text(plan_int4(p, device, true)); }
std::string tinygemm_text(const LinearProblem& p, const Device& device) { return text(plan_tinygemm(p, device)); }

using PlanText = std::string(const LinearProblem&, const Device&);

PlanText* plan_of(const std::string& op) {
  static const std::map<std::string, PlanText*> plans = {
      {"bf16i4bf16_rowwise", int4_text},
      {"bf16i4bf16_rowwise_bias", int4_text},
      {"weight_int4pack_mm", tinygemm_text},
      {"int8_mm", rowwise_text<plan_rowwise>},
      {"scaled_mm_rowwise", rowwise_text<plan_rowwise>},
      {"bf16i8bf16_rowwise", rowwise_text<plan_rowwise>},
      {"bf16f8bf16_rowwise", rowwise_text<plan_rowwise>},
      {"scaled_linear_rowwise", rowwise_text<plan_scaled_linear>},
  };
  const auto found = plans.find(op);
  if (found == plans.end()) throw std::runtime_error("ao::_plan: operator must be one that chooses a kernel, got " + op);
  return found->second;
}

// Operands are taken to be aligned.
std::string plan(const std::string& gpu, const std::string& op, const std::vector<Tensor>& tensors, std::optional<int64_t> number,
                 std::optional<ScalarType> dtype) {
  return plan_of(op)(check_by_name(op, {tensors, number, dtype}), device_named(gpu));
}

std::string force_plan(const std::string& plan) { return force(plan); }

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_plan", TORCH_BOX(&plan));
  m.impl("_force_plan", TORCH_BOX(&force_plan));
}

}  // namespace aoext::cuda
