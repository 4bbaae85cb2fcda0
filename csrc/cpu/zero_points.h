// Zero points of int4 beside its weights, for products that round these.
//
// A weight q · scale + zero_point has the precision of its own magnitude, not of q · scale. Where zero points are many times
// their scales and the x of a group sum to little, the result is what is left of large terms, and little of it is right. So a
// product takes out of its weights what all of a group have in common, and adds that, by the sum of x over the group, in float32.
//
// No weight becomes larger by it, so that those of zero stay zero, which an outlier of x may meet. Where a group's weights have
// both signs, |zero_point| <= 8 |scale| with codes from −8 on, and nothing is taken out: so it is with nearly all weights
// quantised from their range.
#pragma once

#include <vector>

#include "cpu/isa.h"

namespace aoext::cpu {

// What a panel of weights, of which elements [begin, end) are at hand, adds beside them: terms [count, kPanel] of the groups from
// `first` on, by x's sums over these.
struct ZeroPointsBeside {
  const float* terms = nullptr;
  int64_t first = 0, count = 0;
};

constexpr float kReachOfInt4 = 8;

// Takes them out of a panel's zero points, [K/group_size, kPanel], of codes from −reach on, into `beside`. A group is its first
// element's.
inline ZeroPointsBeside take_zero_points_out(const std::vector<float>& scale, std::vector<float>& zero_point,
                                             std::vector<float>& beside, float reach, int64_t group_size, int64_t begin,
                                             int64_t end) {
  const int64_t staged = begin / group_size, first = (begin + group_size - 1) / group_size, last = (end - 1) / group_size + 1;
  const int64_t from = staged * kPanel;
  if (!kernels().has_wide_zero_points(&scale[from], &zero_point[from], reach, last - staged)) return {};
  beside.resize(zero_point.size());
  kernels().split_zero_points(&scale[from], &zero_point[from], reach, last - staged, &beside[from]);
  return {beside.data() + first * kPanel, first, last - first};
}

// Zero points of q + offset, for those of q.
inline void shift_zero_points(const std::vector<float>& scale, std::vector<float>& zero_point, float offset, int64_t group_size,
                              int64_t begin, int64_t end) {
  const int64_t first = begin / group_size, last = (end - 1) / group_size + 1, from = first * kPanel;
  kernels().shift_zero_points(&scale[from], &zero_point[from], offset, last - first);
}

}  // namespace aoext::cpu
