// Weight-only int4 from the tinygemm layout.
#include <vector>

#include "cuda/int4pack_product.h"
#include "cuda/operands.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const LinearProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Device& device = device_of(input);
  const TinygemmPlan plan = plan_tinygemm(p, device);
  if (is_generic(plan.kernel)) return generic::weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Launch launch(input);
  const Tensor y = aten::empty({p.M, p.N}, p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(input), words = aligned(weight), pairs = aligned(scale_and_zero);
  TinygemmLinear linear = tinygemm_linear(p);
  linear.x = x.const_data_ptr();
  linear.weight = words.const_data_ptr();
  linear.scale_and_zero = pairs.const_data_ptr();
  linear.y = y.mutable_data_ptr();
  std::vector<Tensor> workspaces;  // until all is queued
  const auto allocate = [&](size_t bytes) {
    workspaces.push_back(*workspace(bytes, y));
    return workspaces.back().mutable_data_ptr();
  };
  check(launch_int4pack(linear, plan, device, allocate, launch.stream()), "weight_int4pack_mm");
  return y;
}

Explanation explain_product(const Call& call) {
  return explain(plan_tinygemm(call.problem, device_of(call.tensor(0))), call.problem);
}

}  // namespace

AOEXT_REGISTER(CUDA, weight_int4pack_mm, &explain_product, &weight_int4pack_mm)

}  // namespace aoext::cuda
