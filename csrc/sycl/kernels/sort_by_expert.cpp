// Pairs of token and expert in the order of experts: order[pairs], stable, its inverse, place[pairs], and where the pairs of each
// expert end, offsets[experts].
//
// A sub-group has one expert, the last one all pairs whose id is no expert's. It reads all ids twice: it counts those of experts
// before its own and of its own, then writes where its own are. Nothing passes between sub-groups, so one launch does. 512 pairs
// of 128 experts are 4 KB, which 129 sub-groups read 2 · 32 times 16 at a time.
#include "kernel.h"

namespace aoext::xpu {
namespace {

template <class Id>
inline void sort_by_expert(int64_t* order, int64_t* place, int* offsets, const Id* ids, int pairs, int experts) {
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int own = static_cast<int>(item.get_group(1) * sg.get_group_linear_range() + sg.get_group_linear_id());
  if (own > experts) return;  // whole sub-groups
  const auto expert_of = [&](int i) {
    const Id id = ids[i];
    return id >= 0 && id < experts ? static_cast<int>(id) : experts;
  };
  int before = 0, count = 0;
  for (int i = lane; i < pairs; i += kLanes) {
    const int expert = expert_of(i);
    before += expert < own;
    count += expert == own;
  }
  int next = sycl::reduce_over_group(sg, before, sycl::plus<int>());
  const int end = next + sycl::reduce_over_group(sg, count, sycl::plus<int>());
  if (own < experts && lane == 0) offsets[own] = end;
  for (int first = 0; first < pairs && next < end; first += kLanes) {
    const int i = first + lane, mine = i < pairs && expert_of(sycl::min(i, pairs - 1)) == own;
    const int through = sycl::inclusive_scan_over_group(sg, mine, sycl::plus<int>());
    if (mine != 0) {
      order[next + through - 1] = i;
      place[i] = next + through - 1;
    }
    next += lane_value(through, kLanes - 1);
  }
}

}  // namespace
}  // namespace aoext::xpu

AOEXT_KERNEL(sort_by_expert_int32)(int64_t* order, int64_t* place, int* offsets, const int32_t* ids, int pairs, int experts) {
  aoext::xpu::sort_by_expert(order, place, offsets, ids, pairs, experts);
}

AOEXT_KERNEL(sort_by_expert_int64)(int64_t* order, int64_t* place, int* offsets, const int64_t* ids, int pairs, int experts) {
  aoext::xpu::sort_by_expert(order, place, offsets, ids, pairs, experts);
}
