// x as int8 limbs, for int4 by few rows of x in integers.
//
// Where x allows it a group of x becomes 16-bit fixed point, x = scale · (256 h + l), h and l of int8, and the nibbles, 0..15
// once their sign bit is flipped, meet h and l as bytes, two to four products a lane. Sums of 128 elements are exact; w·x = Σ
// scale · (Σ u h · 256 + Σ u l − 8 Σ (256 h + l)) + zero_point · Σ x. 64 weights (AVX2) take 6 instructions to unpack and 8 for a
// row of x, where floats take 32. For float32 results it is three limbs, of 23 bits.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kPlaneBytes = 4 * kFloats;  // of a vector: so many even k's nibbles and so many odd ones'
constexpr int64_t kPlaneUnit = 2 * kPlaneBytes;
static_assert(kPad <= 128, "a step's sums are exact");
constexpr int64_t kStretch = 32;  // divides groups and units

// The largest value in fixed point: below 128 in its first plane, and what kRounder rounds.
template <int kPlanes>
constexpr int kFixedMost = kPlanes == 2 ? 127 * 256 : 63 * 65536;

// How far the largest of a group may be above the mean: the step of 16 bits is then below 2⁻¹¹ of the mean, and what rounding
// adds, 2⁻¹³ on average, far below the rounding of a bfloat16 or half result; that of 23 bits is 2⁻¹⁸. One outlier in a group
// fails this.
constexpr float kWidest = 16;

template <int kPlanes>
bool arrange_planes(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                    float* group_sums) {
  for (int64_t g = 0; g < K / group_size; ++g) {
    const float* const from = x + g * group_size;
    F32 sums = {}, absolute = {};
    U32 most = {};
    for (int64_t i = 0; i < group_size; i += kFloats) {
      const F32 v = load<F32>(from + i);
      const U32 magnitude = (U32)v & kMagnitude;
      sums += v;
      absolute += (F32)magnitude;
      most = magnitude > most ? magnitude : most;
    }
    uint32_t largest = 0;
    for (int i = 0; i < kFloats; ++i) largest = most[i] > largest ? most[i] : largest;
    const float highest = from_bits(largest);
    if (!(highest * static_cast<float>(group_size) <= kWidest * sum<float>(absolute))) return false;
    // Below this the step would be subnormal.
    const bool nothing = highest < 1e-30f;
    if (nothing && highest > 0) return false;
    const float inverse = nothing ? 0 : static_cast<float>(kFixedMost<kPlanes>) / highest;
    int64_t fixed_sum = 0;
    for (int64_t i = 0; i < group_size; i += kStretch) {
      constexpr float kRounder = 12582912.0f;  // 1.5 · 2²³: its ulp is 1
      int8_t planes[kPlanes][kStretch];
      int32_t stretch_sum = 0;
      for (int64_t j = 0; j < kStretch; ++j) {
        int32_t fixed = static_cast<int32_t>(bits(from[i + j] * inverse + kRounder) - bits(kRounder));
        stretch_sum += fixed;
        for (int plane = kPlanes - 1; plane > 0; --plane) {
          const int32_t above = (fixed + 128) >> 8;
          planes[plane][j] = static_cast<int8_t>(fixed - 256 * above);
          fixed = above;
        }
        planes[0][j] = static_cast<int8_t>(fixed);
      }
      fixed_sum += stretch_sum;
      const int64_t k = g * group_size + i, in_unit = k % kPlaneUnit;
      int8_t* const to = out + kPlanes * (k - in_unit) + in_unit / 2;
      for (int plane = 0; plane < kPlanes; ++plane)
        for (int64_t j = 0; j < kStretch / 2; ++j) {
          to[plane * kPlaneUnit + j] = planes[plane][2 * j];
          to[plane * kPlaneUnit + kPlaneBytes + j] = planes[plane][2 * j + 1];
        }
    }
    scales[g] = highest / static_cast<float>(kFixedMost<kPlanes>);
    fixed_sums[g] = -8 * scales[g] * static_cast<float>(fixed_sum);
    group_sums[g] = sum<float>(sums);
  }
  return true;
}

}  // namespace
}  // namespace aoext::cpu
