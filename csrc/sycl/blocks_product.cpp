#include "sycl/blocks_product.h"

#include "common/dispatcher.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/plan.h"

namespace aoext::xpu {
namespace {

const Tensor* pointer(const OptionalTensor& t) { return t ? &*t : nullptr; }

}  // namespace

bool any_serves(sycl::queue& queue, const LinearProblem& p) { return p.K < kMaxAnyDepth && serves(queue, "linear_any.lanes"); }

Explanation explain_any(const Call& call) {
  return any_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "linear_any"} : generic_explanation();
}

OptionalTensor blocks_product(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                              const OptionalTensor& bias, const OptionalTensor& input_scale, const OptionalTensor& table,
                              const OptionalTensor& global_scale) {
  sycl::queue& queue = current_queue(input);
  if (!any_serves(queue, p)) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input), dense_weight = aten::contiguous(weight), scales = aten::contiguous(scale);
  const OptionalTensor rows = contiguous(input_scale), values = contiguous(table), dense_bias = contiguous(bias);
  linear_any_blocks(queue, p, y,
                    {x, dense_weight, scales, pointer(values), pointer(global_scale), pointer(rows), pointer(dense_bias)});
  return y;
}

}  // namespace aoext::xpu
