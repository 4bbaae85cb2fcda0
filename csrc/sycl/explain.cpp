// aoext.explain and aoext.warmup on an XPU.
#include "common/explain.h"

#include "common/library.h"
#include "sycl/int4pack_product.h"
#include "sycl/plan.h"
#include "sycl/queue.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

std::string explain(const std::string& op, const std::vector<Tensor>& tensors) {
  LinearProblem p = check_by_name(op, tensors);
  sycl::queue& queue = current_queue(tensors[0]);
  if (op == "weight_int4pack_mm" && p.K < kMaxAnyDepth && serves(queue, kInt4PackImage)) {
    Int4PackLinear linear{};
    linear.M = p.M, linear.N = p.N, linear.K = p.K;
    return describe(plan_int4pack(linear, queue));
  }
  if (op == "convert_weight_to_int4pack" || op == "weight_int4pack_mm") return describe(Plan(), queue);
  if (op == "quantize_rowwise" || op == "dequantize_int4")
    return serves(queue, op + ".lanes") ? "xpu: " + op + ", one pass" : describe(Plan(), queue);
  if (op == "scaled_linear_rowwise") p.input = p.weight;  // once it is quantised
  const bool int4 = op.rfind("bf16i4bf16_rowwise", 0) == 0;
  // An input with gaps becomes a copy, which is aligned.
  const bool dense = tensors[0].is_contiguous();
  const int alignment = dense ? alignment_of({&tensors[0], &tensors[1]}) : alignment_of({&tensors[1]});
  return describe(int4 ? plan_int4(p, queue, alignment) : plan_rowwise(p, queue, alignment), queue);
}

// One line for each family of kernels: "name: verdict".
std::string warmup(const Tensor& like) {
  std::string text;
  for (const auto& [family, verdict] : check_all(current_queue(like))) text += family + ": " + verdict + "\n";
  return text;
}

}  // namespace

AOEXT_LIBRARY_IMPL(XPU, m) {
  m.impl("_explain", TORCH_BOX(&explain));
  m.impl("_warmup", TORCH_BOX(&warmup));
}

}  // namespace aoext::xpu
