// aoext.explain on CUDA.
#include "common/explain.h"

#include "common/library.h"
#include "cuda/operands.h"
#include "cuda/plan.h"
#include "cuda/plan_rowwise.h"
#include "cuda/plan_tinygemm.h"

namespace aoext::cuda {
namespace {

std::string explain(const std::string& op, const std::vector<Tensor>& tensors) {
  const LinearProblem p = check_by_name(op, tensors);
  const Device& device = device_of(tensors[0]);
  if (op == "weight_int4pack_mm") {
    const int64_t group_size = p.K / tensors[2].size(0);
    return describe(plan_tinygemm(check_weight_int4pack_mm(tensors[0], tensors[1], group_size, tensors[2]), device));
  }
  if (op == "convert_weight_to_int4pack" || op == "dequantize_int4" || op == "quantize_rowwise")
    return takes_one_pass(p.K, device) ? "cuda: " + op + ", one pass" : describe(Plan());
  // Of what the operators do not copy to where it is aligned: input is not among it.
  if (op.rfind("bf16i4bf16_rowwise", 0) == 0)
    return describe(plan_int4(p, device, are_aligned({&tensors[1], &tensors[2], &tensors[3]})));
  const auto plan = op == "scaled_linear_rowwise" ? plan_scaled_linear : plan_rowwise;
  return describe(plan(p, device, are_aligned({&tensors[1]})), p);
}

}  // namespace

AOEXT_LIBRARY_IMPL(CUDA, m) { m.impl("_explain", TORCH_BOX(&explain)); }

}  // namespace aoext::cuda
