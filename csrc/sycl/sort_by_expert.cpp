// A router's choice as an order of pairs of token and expert, and the offsets that products take, on an XPU.
#include <algorithm>

#include "common/checks.h"
#include "common/sizes.h"
#include "generic/register.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

// Every expert's sub-group reads every pair: where that is more, ATen's sort is faster.
constexpr int64_t kMostComparisons = int64_t{1} << 26;

bool sort_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.M * (p.experts + 1) <= kMostComparisons && serves(queue, Source::sort_by_expert);
}

generic::Triple sort_by_expert(const Tensor& expert, int64_t experts) {
  const LinearProblem p = check_sort_by_expert(expert, experts);
  sycl::queue& queue = current_queue(expert);
  if (!sort_serves(queue, p)) return generic::sort_by_expert(expert, experts);
  static const Module &of_int32 = module("sort_by_expert.lanes", "sort_by_expert_int32"),
                      &of_int64 = module("sort_by_expert.lanes", "sort_by_expert_int64");
  const Tensor order = aten::empty({p.M}, ScalarType::Long, expert), place = aten::empty({p.M}, ScalarType::Long, expert),
               offsets = aten::empty({experts}, ScalarType::Int, expert);
  const Tensor ids = aten::contiguous(expert);
  const int64_t sub_groups = experts + 1, in_a_work_group = std::min(sub_groups, kSubGroups);
  const auto width = static_cast<size_t>(in_a_work_group * kLanes);
  launch(queue, p.input == ScalarType::Int ? of_int32 : of_int64,
         sycl::nd_range<2>({1, static_cast<size_t>(ceil_div(sub_groups, in_a_work_group)) * width}, {1, width}),
         order.mutable_data_ptr(), place.mutable_data_ptr(), offsets.mutable_data_ptr(), ids.const_data_ptr(),
         static_cast<int>(p.M), static_cast<int>(experts));
  return {order, place, offsets};
}

Explanation explain_sort(const Call& call) {
  return sort_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "sort_by_expert"} : generic_explanation();
}

}  // namespace

AOEXT_REGISTER(XPU, sort_by_expert, &explain_sort, &sort_by_expert)

}  // namespace aoext::xpu
