// Pairs of token and expert in the order of experts, on CUDA.
#include "cuda/kernels/sort_by_expert.h"
#include "cuda/operands.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

bool sorts_at_once(const LinearProblem& p, const Device& device) { return device.has_kernels && p.M <= kMostSortedPairs; }

generic::Triple sort_by_expert(const Tensor& expert, int64_t experts) {
  const LinearProblem p = check_sort_by_expert(expert, experts);
  if (!sorts_at_once(p, device_of(expert))) return generic::sort_by_expert(expert, experts);
  const Launch launch(expert);
  const Tensor order = aten::empty({p.M}, ScalarType::Long, expert), place = aten::empty({p.M}, ScalarType::Long, expert),
               offsets = aten::empty({experts}, ScalarType::Int, expert);
  const Tensor ids = aten::contiguous(expert);
  const SortByExpert raw{ids.const_data_ptr(),
                         static_cast<int64_t*>(order.mutable_data_ptr()),
                         static_cast<int64_t*>(place.mutable_data_ptr()),
                         static_cast<int32_t*>(offsets.mutable_data_ptr()),
                         static_cast<int>(p.M),
                         static_cast<int>(experts),
                         p.input == ScalarType::Long};
  check(launch_sort_by_expert(raw, launch.stream()), "sort_by_expert");
  return {order, place, offsets};
}

Explanation explain_sort(const Call& call) {
  return sorts_at_once(call.problem, device_of(call.tensor(0))) ? Explanation{"cuda", "sort_by_expert"} : generic_explanation();
}

}  // namespace

AOEXT_REGISTER(CUDA, sort_by_expert, &explain_sort, &sort_by_expert)

}  // namespace aoext::cuda
