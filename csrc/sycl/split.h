// How many sub-groups of a work-group split K, in kernels that do (kernels/split_k.h). It knows nothing of torch.
#pragma once

#include <algorithm>

#include "common/sizes.h"
#include "sycl/device.h"
#include "sycl/kernels/shape.h"

namespace aoext::xpu {

inline int64_t most_sub_groups(const Device& device, int64_t K) {
  return std::min<int64_t>({kMaxSubGroups, ceil_div(K, kBlock), device.work_group / kLanes});
}

// As many as keep the device busy.
inline int split(const Device& device, int64_t work_groups, int64_t K) {
  int sub_groups = 1;
  while (sub_groups * 2 <= most_sub_groups(device, K) && sub_groups * work_groups < device.threads) sub_groups *= 2;
  return sub_groups;
}

inline bool is_split(int sub_groups, const Device& device, int64_t K) {
  return sub_groups >= 1 && sub_groups <= most_sub_groups(device, K) && (sub_groups & (sub_groups - 1)) == 0;
}

}  // namespace aoext::xpu
