#include "sycl/plan.h"

#include <algorithm>

#include "common/sizes.h"
#include "sycl/device.h"
#include "sycl/operands.h"
#include "sycl/product.h"
#include "sycl/queue.h"
#include "sycl/self_check.h"

namespace aoext::xpu {

int alignment_of(std::initializer_list<const Tensor*> tensors) {
  int alignment = onednn::kAlignment;
  for (const Tensor* t : tensors)
    while (!is_aligned(*t, alignment)) alignment /= 2;
  return alignment;
}

bool serves(sycl::queue& queue, const KernelName& kernel) {
  return has_kernel(kernel) && runs(device_of(queue), kernel.image) && trusted(queue, kernel.full());
}

bool serves(sycl::queue& queue, const std::string& image) { return runs(device_of(queue), image) && trusted(queue, image); }

int tile_sub_groups(const LinearProblem& p, const Device& device, int rows, int columns) {
  const int64_t work_groups = ceil_div(p.M, rows) * ceil_div(p.N, columns);
  const int64_t most = std::min<int64_t>({kMaxSubGroups, ceil_div(p.K, kBlock), int64_t(device.work_group) / kLanes});
  int sub_groups = 1;
  while (sub_groups * 2 <= most && sub_groups * work_groups < device.threads) sub_groups *= 2;
  return sub_groups;
}

int tile_rows(int64_t M, bool matrix) { return M == 1 ? 1 : M <= 4 ? 4 : M <= 8 || !matrix ? 8 : M <= 16 ? 16 : 32; }

sycl::nd_range<2> tile_range(const Plan& plan, const LinearProblem& p) {
  const size_t width = static_cast<size_t>(plan.sub_groups) * kLanes;
  return {{static_cast<size_t>(ceil_div(p.M, plan.rows)), static_cast<size_t>(ceil_div(p.N, plan.columns)) * width}, {1, width}};
}

Plan choose(const LinearProblem& p, sycl::queue& queue, int alignment, const std::function<bool(Plan&, const std::string&)>& tile,
            const std::function<bool(Plan&)>& product) {
  const Device& device = device_of(queue);
  const bool matrix = !device.matrix.empty() && p.input != ScalarType::Float;
  Plan plan;
  const auto try_tile = [&] {
    return alignment % kTileAlignment == 0 && ((matrix && tile(plan, device.matrix)) || tile(plan, "lanes"));
  };
  const auto try_product = [&] { return alignment % onednn::kAlignment == 0 && product(plan); };
  // On a GPU the matrix engine keeps up with memory to about 64 rows; lanes alone multiply slower than they read from
  // a few rows on. The CPU device is for tests: there oneDNN wins from two rows on.
  const int64_t most_tile_rows = matrix ? 64 : device.gpu ? 8 : 1;
  const bool found = p.M <= most_tile_rows ? try_tile() || try_product() : try_product() || try_tile();
  if (!found && p.K < kMaxAnyDepth && serves(queue, "linear_any.lanes")) plan.algorithm = Algorithm::any;
  return plan;
}

const char* type_name(ScalarType t) {
  switch (t) {
    case ScalarType::BFloat16: return "bf16";
    case ScalarType::Half: return "fp16";
    case ScalarType::Char: return "int8";
    case ScalarType::Float8_e4m3fn: return "e4m3";
    case ScalarType::Float8_e5m2: return "e5m2";
    default: return "fp32";
  }
}

std::string type_names(ScalarType weight, ScalarType input) { return std::string(type_name(weight)) + "_" + type_name(input); }

std::string product_family(ScalarType input) { return std::string("onednn.int4.") + type_name(input); }
std::string product_family(ScalarType weight, ScalarType input) { return "onednn." + type_names(weight, input); }

Explanation explain(const Plan& plan, sycl::queue& queue) {
  switch (plan.algorithm) {
    case Algorithm::generic: break;
    case Algorithm::any: return {"xpu", "linear_any"};
    case Algorithm::onednn:
      return Explanation{"xpu", "oneDNN"}.with("implementation", onednn::implementation(queue, plan.product));
    case Algorithm::tile:
      return Explanation{"xpu", plan.kernel.image}.with("variant", plan.kernel.name).with("sub_groups", plan.sub_groups);
  }
  return generic_explanation();
}

Explanation explain_product(const Call& call, Plan (*plan)(const LinearProblem&, sycl::queue&, int)) {
  const Tensor &input = call.tensor(0), &weight = call.tensor(1);
  sycl::queue& queue = current_queue(input);
  // An input with gaps becomes a copy, which is aligned.
  const int alignment = input.is_contiguous() ? alignment_of({&input, &weight}) : alignment_of({&weight});
  return explain(plan(call.problem, queue, alignment), queue);
}

Explanation explain_one_pass(const Call& call) {
  return serves(current_queue(call.tensor(0)), call.op + ".lanes") ? Explanation{"xpu", call.op} : generic_explanation();
}

}  // namespace aoext::xpu
