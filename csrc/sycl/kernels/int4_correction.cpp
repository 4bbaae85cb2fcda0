// int4's float zero points as integer zero points and a float32 correction, for products that take integer ones only.
//
// w = q · s + z = (q − p) · s + r, with p the integer nearest to −z / s and the rest r = z + p · s. oneDNN may round (q − p) · s
// to 16 bits, which would show where x sums to nothing, so p is as near as −8 … 8 allow; r is multiplied in float32.
//   int4_prepare   p, r and a float32 copy of s, for each element of [K/G, N]
//   group_sums     Σ x over each group of G along k: float32 [M, K/G], by which r is to be multiplied
#include "kernel.h"
#include "piece.h"

namespace aoext::xpu {
namespace {

inline bool finite(float f) { return (sycl::bit_cast<uint32_t>(f) & 0x7F800000u) != 0x7F800000u; }

}  // namespace
}  // namespace aoext::xpu

// One element a work-item. scale32 may be null.
AOEXT_KERNEL(int4_prepare)
(int8_t* integers, float* rest, float* scale32, const void* scale, const void* zero_point, int64_t count, Element type) {
  using namespace aoext::xpu;
  const int64_t i = this_item().get_global_linear_id();
  if (i >= count) return;
  const float s = load_float(scale, i, type), z = load_float(zero_point, i, type);
  const float ratio = -z / s;  // to a few ulp: r makes up for whichever p
  const float p = s != 0 && finite(s) && finite(z) && finite(ratio) ? sycl::rint(sycl::clamp(ratio, -8.0f, 8.0f)) : 0.0f;
  integers[i] = static_cast<int8_t>(p);
  rest[i] = p == 0 ? z : sycl::fma(p, s, z);
  if (scale32 != nullptr) scale32[i] = s;
}

// Both sum in float32, in the same order every time. The groups of x lie one after the other, and so do their sums.

// group_size is 8, 16, 32, 64 or a multiple of 128, and x starts at a 16-byte boundary. A sub-group loads 128 elements at
// a time, 8 a lane, of one group or of several.
AOEXT_KERNEL(group_sums_wide)
(float* sums, const void* x, int64_t count, int group_size, Element type) {
  using namespace aoext::xpu;
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id(), lanes = sycl::min(group_size / 8, kLanes);  // of a group
  const int64_t item = this_item().get_global_linear_id();
  const int64_t group = sycl::min(item / lanes, count - 1);
  const int64_t first = group * (group_size / 8) + lane % lanes;
  float sum = 0;
  for (int i = 0; i < group_size / 8; i += lanes) {
    const auto piece = load_piece<8>(x, first + i, type);
    sum += ((piece[0] + piece[1]) + (piece[2] + piece[3])) + ((piece[4] + piece[5]) + (piece[6] + piece[7]));
  }
  for (int mask = 1; mask < lanes; mask *= 2) sum += sycl::permute_group_by_xor(sg, sum, mask);
  if (lane % lanes == 0 && item / lanes < count) sums[group] = sum;
}

// Any group_size: a sub-group sums one group, its lanes neighbouring elements.
AOEXT_KERNEL(group_sums_any)
(float* sums, const void* x, int64_t count, int group_size, Element type) {
  using namespace aoext::xpu;
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int64_t group = this_item().get_global_linear_id() / kLanes;
  if (group >= count) return;
  float sum = 0;
  for (int k = lane; k < group_size; k += kLanes) sum += load_float(x, group * group_size + k, type);
  sum = sycl::reduce_over_group(sg, sum, sycl::plus<float>());
  if (lane == 0) sums[group] = sum;
}
