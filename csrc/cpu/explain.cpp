// What the CPU tells of its plans: aoext.explain, and aoext.ops.plan and with_plan for every instruction set.
#include "cpu/explain.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

#include "common/library.h"
#include "cpu/plan.h"
#include "generic/plans.h"

namespace aoext::cpu {
namespace {

using Plan = Kernel (*)(const Choice&);

// How an operator chooses, or null of one that does not.
Plan plan_of(const std::string& op) {
  static const std::map<std::string, Plan> plans = {
      {"weight_only_linear", plan_weight_only},
      {"bf16i4bf16_rowwise", plan_weight_only},
      {"bf16i4bf16_rowwise_bias", plan_weight_only},
      {"scaled_linear", plan_scaled},
      {"scaled_mm", plan_scaled},
      {"scaled_mm_rowwise", plan_scaled},
      {"int8_mm", plan_int8},
      {"weight_int4pack_mm", plan_int4pack},
  };
  const auto found = plans.find(op);
  return found == plans.end() ? nullptr : found->second;
}

// The kernel that a call gets by an instruction set, or an expert of it that has the rows of an equal share. A table that is not
// in a CPU's memory counts as one of bfloat16's numbers.
std::string planned_kernel(Plan plan, const Call& call, Isa isa) {
  LinearProblem p = call.problem;
  if (p.experts > 0) p.M = ceil_div(p.M, p.experts);
  if (call.op == "scaled_linear") p.input = p.quantized;
  const Tensor* const table = call.named("table");
  const bool readable = table != nullptr && table->is_cpu();
  return name_of(plan(Choice(p, isa, readable ? static_cast<const float*>(table->const_data_ptr()) : nullptr)));
}

std::string plan_text(const std::string& device, const Call& call) {
  const Plan plan = plan_of(call.op);
  if (plan == nullptr) throw std::runtime_error("ao::_plan: operator must be one that chooses a kernel, got " + call.op);
  return planned_kernel(plan, call,
                        *std::find_if(std::begin(kIsas), std::end(kIsas), [&](Isa i) { return device == name_of(i); }));
}

std::vector<std::string> devices() {
  std::vector<std::string> names;
  for (const Isa isa : kIsas) names.emplace_back(name_of(isa));
  return names;
}

std::vector<Forceable> forceable() {
  std::vector<Forceable> all;
  for (int i = 0; i < kKernels; ++i) all.push_back({name_of(static_cast<Kernel>(i)), {}});
  return all;
}

[[maybe_unused]] const bool added = add_plans({Key::CPU, devices, plan_text, forceable});

std::string kernels_of(const std::string& instruction_set) {
  std::string names;
  for (const Isa isa : kIsas)
    for (int i = 0; i < kKernels && instruction_set == name_of(isa); ++i)
      if (has(isa, static_cast<Kernel>(i))) names += std::string(name_of(static_cast<Kernel>(i))) + "\n";
  return names;
}

}  // namespace

Explanation explain(const Call& call) {
  const LinearProblem& p = call.problem;
  const Plan plan = plan_of(call.op);
  if (plan != plan_weight_only && p.subtracts_zero_point) return generic_explanation();
  const std::string kernel = plan != nullptr                                 ? planned_kernel(plan, call, isa())
                             : call.op == "quantize"                         ? "quantize_row"
                             : call.op != "dequantize"                       ? call.op
                             : is_by_groups(p.code) && !is_in_planes(p.code) ? "dequantize_int4"
                                                                             : "dequantize_blockwise";
  Explanation e = Explanation{"cpu", kernel}.with("instruction_set", name_of(isa()));
  return plan == nullptr || p.experts == 0 ? e : e.with("rows_an_expert", ceil_div(p.M, p.experts));
}

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("_cpu_kernels", AOEXT_BOX(&kernels_of)); }

}  // namespace aoext::cpu
