// Weight-only int4 from the tinygemm layout on an XPU.
#include "common/checks.h"
#include "generic/register.h"
#include "sycl/int4pack_product.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

// The input itself, contiguous and where the kernel can read it, or a copy.
Tensor aligned(const Tensor& input) {
  const Tensor x = aten::contiguous(input);
  if (is_aligned(x, kInt4PackInputAlignment)) return x;
  const Tensor copy = aten::empty(x.sizes(), x.scalar_type(), x);
  aten::copy_(copy, x);
  return copy;
}

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const LinearProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  sycl::queue& queue = current_queue(input);
  if (p.K >= kMaxAnyDepth || !serves(queue, kInt4PackImage))
    return generic::weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Tensor y = aten::empty({p.M, p.N}, p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(input);
  launch_int4pack(queue, {y.mutable_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(), scale_and_zero.const_data_ptr(), p.M,
                          p.N, p.K, group_size, p.inner_k_tiles});
  return y;
}

Explanation explain_packed(const Call& call) {
  const LinearProblem& p = call.problem;
  sycl::queue& queue = current_queue(call.tensor(0));
  if (p.K >= kMaxAnyDepth || !serves(queue, kInt4PackImage)) return generic_explanation();
  Int4PackLinear linear{};
  linear.M = p.M, linear.N = p.N, linear.K = p.K;
  const Int4PackPlan plan = plan_int4pack(linear, queue);
  return Explanation{"xpu", "int4pack_mm"}.with("tile_m", plan.rows).with("sub_groups", plan.sub_groups);
}

}  // namespace

AOEXT_REGISTER(XPU, weight_int4pack_mm, &explain_packed, &weight_int4pack_mm)

}  // namespace aoext::xpu
