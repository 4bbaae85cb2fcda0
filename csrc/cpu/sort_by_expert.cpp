// Pairs of token and expert in the order of experts: a counting sort, whose counts live in the offsets that it returns.
#include "common/dispatcher.h"
#include "cpu/explain.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

template <class Id>
void sort(const Id* expert, int64_t pairs, int64_t experts, int64_t* order, int64_t* place, int32_t* offsets) {
  const auto has_expert = [&](Id e) { return e >= 0 && e < experts; };
  std::fill_n(offsets, experts, 0);
  for (int64_t i = 0; i < pairs; ++i)
    if (has_expert(expert[i])) ++offsets[expert[i]];
  int32_t begin = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t count = offsets[e];
    offsets[e] = begin;
    begin += count;
  }
  // Each expert's begin moves on to its end.
  int64_t without = begin;
  for (int64_t i = 0; i < pairs; ++i) {
    place[i] = has_expert(expert[i]) ? offsets[expert[i]]++ : without++;
    order[place[i]] = i;
  }
}

generic::Triple sort_by_expert(const Tensor& expert, int64_t experts) {
  const LinearProblem p = check_sort_by_expert(expert, experts);
  const Tensor order = aten::empty({p.M}, ScalarType::Long, expert), place = aten::empty({p.M}, ScalarType::Long, expert),
               offsets = aten::empty({experts}, ScalarType::Int, expert);
  const Tensor ids = aten::contiguous(expert);
  const auto by = [&]<class Id>(const Id* data) {
    sort(data, p.M, experts, static_cast<int64_t*>(order.mutable_data_ptr()), static_cast<int64_t*>(place.mutable_data_ptr()),
         static_cast<int32_t*>(offsets.mutable_data_ptr()));
  };
  if (p.input == ScalarType::Int)
    by(static_cast<const int32_t*>(ids.const_data_ptr()));
  else
    by(static_cast<const int64_t*>(ids.const_data_ptr()));
  return {order, place, offsets};
}

}  // namespace

AOEXT_REGISTER(CPU, sort_by_expert, &explain, &sort_by_expert)

}  // namespace aoext::cpu
