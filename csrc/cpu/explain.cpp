// aoext.explain on a CPU: the plan that each operator would follow for these arguments.
#include "common/explain.h"

#include "common/library.h"
#include "cpu/isa.h"
#include "cpu/plan.h"

namespace aoext::cpu {
namespace {

std::string explain(const std::string& op, const std::vector<Tensor>& tensors) {
  const LinearProblem p = check_by_name(op, tensors);
  if (op == "quantize_rowwise" || op == "dequantize_int4" || op == "convert_weight_to_int4pack")
    return std::string("cpu/") + kernels().name + ": row by row";
  if (op == "weight_int4pack_mm") return describe(plan_int4pack(p));
  const bool scaled = op == "int8_mm" || op == "scaled_mm_rowwise" || op == "scaled_linear_rowwise";
  if (op.rfind("bf16i4bf16_rowwise", 0) == 0) return describe(plan_int4(p));
  return describe(scaled ? plan_scaled(p) : plan_rowwise(p));
}

}  // namespace

AOEXT_LIBRARY_IMPL(CPU, m) { m.impl("_explain", TORCH_BOX(&explain)); }

}  // namespace aoext::cpu
