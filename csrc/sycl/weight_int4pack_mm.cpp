// Weight-only int4 from the tinygemm layout on an XPU.
#include "common/checks.h"
#include "generic/register.h"
#include "sycl/int4pack_product.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"
#include "sycl/split.h"

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

bool int4pack_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K < kMaxAnyDepth && serves(queue, Source::int4pack_mm);
}

std::string text_of(const Int4PackPlan& plan) {
  return "int4pack_mm rows=" + std::to_string(plan.rows) + " sub_groups=" + std::to_string(plan.sub_groups);
}

// What is chosen, with what is forced in its place.
Int4PackPlan plan_int4pack(const LinearProblem& p, const Device& device) {
  Int4PackLinear linear{};
  linear.M = p.M, linear.N = p.N, linear.K = p.K;
  Int4PackPlan plan = plan_int4pack(linear, device);
  const Forced* const f = forced();
  if (f == nullptr || f->kernel != "int4pack_mm") return plan;
  plan = {f->field("rows", plan.rows), f->field("sub_groups", plan.sub_groups)};
  if ((plan.rows != 1 && plan.rows != 4 && plan.rows != 8) || !is_split(plan.sub_groups, device, p.K))
    refuse_config(*f, text(p), text_of(plan));
  return plan;
}

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const LinearProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  sycl::queue& queue = current_queue(input);
  if (!int4pack_serves(queue, p)) return generic::weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Tensor y = aten::empty({p.M, p.N}, p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(input);
  launch_int4pack(queue, plan_int4pack(p, device_of(queue)),
                  {y.mutable_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(), scale_and_zero.const_data_ptr(), p.M, p.N,
                   p.K, group_size, p.inner_k_tiles});
  return y;
}

Explanation explain_packed(const Call& call) {
  sycl::queue& queue = current_queue(call.tensor(0));
  if (!int4pack_serves(queue, call.problem)) return generic_explanation();
  const Int4PackPlan plan = plan_int4pack(call.problem, device_of(queue));
  return Explanation{"xpu", "int4pack_mm"}.with("rows", plan.rows).with("sub_groups", plan.sub_groups);
}

}  // namespace

std::string int4pack_text(const LinearProblem& p, const Device& device) { return text_of(plan_int4pack(p, device)); }

AOEXT_REGISTER(XPU, weight_int4pack_mm, &explain_packed, &weight_int4pack_mm)

}  // namespace aoext::xpu
