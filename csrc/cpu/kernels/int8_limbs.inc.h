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

constexpr int kOneInt8Limb = 1, kTwoInt8Limbs = 2, kThreeInt8Limbs = 3;
constexpr int64_t kLimbBytes = 4 * kFloats;  // of a vector: so many even k's nibbles and so many odd ones'
constexpr int64_t kLimbUnit = 2 * kLimbBytes;
static_assert(kPad <= 128, "a step's sums are exact");
constexpr int64_t kStretch = 16;  // divides groups and units

// The largest value in fixed point: below 128 in its first limb, and what kRounder rounds.
template <int kLimbs>
constexpr int kFixedMost = kLimbs == 2 ? 127 * 256 : 63 * 65536;

// How far the largest of a group may be above the mean: the step of 16 bits is then below 2⁻¹¹ of the mean, and what rounding
// adds, 2⁻¹³ on average, far below the rounding of a bfloat16 or half result; that of 23 bits is 2⁻¹⁸. One outlier in a group
// fails this.
constexpr float kWidest = 16;

template <class Loader, int kLimbs>
bool split_limbs(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                 float* group_sums) {
  for (int64_t g = 0; g < K / group_size; ++g) {
    const float* const from = x + g * group_size;
    CompensatedSum sums;
    F32 absolute = {};
    U32 most = {};
    for (int64_t i = 0; i < group_size; i += kFloats) {
      const F32 v = load<F32>(from + i);
      const U32 magnitude = (U32)v & kMagnitude;
      sums.add(v);
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
    const float inverse = nothing ? 0 : static_cast<float>(kFixedMost<kLimbs>) / highest;
    int64_t fixed_sum = 0;
    for (int64_t i = 0; i < group_size; i += kStretch) {
      constexpr float kRounder = 12582912.0f;  // 1.5 · 2²³: its ulp is 1
      int8_t limbs[kLimbs][kStretch];
      int32_t stretch_sum = 0;
      for (int64_t j = 0; j < kStretch; ++j) {
        int32_t fixed = static_cast<int32_t>(bits(from[i + j] * inverse + kRounder) - bits(kRounder));
        stretch_sum += fixed;
        for (int limb = kLimbs - 1; limb > 0; --limb) {
          const int32_t above = (fixed + 128) >> 8;
          limbs[limb][j] = static_cast<int8_t>(fixed - 256 * above);
          fixed = above;
        }
        limbs[0][j] = static_cast<int8_t>(fixed);
      }
      fixed_sum += stretch_sum;
      const int64_t k = g * group_size + i;
      if constexpr (requires { Loader::kInOrder; }) {
        const int64_t in_vector = k % kLimbBytes;
        int8_t* const to = out + kLimbs * (k - in_vector) + in_vector;
        for (int limb = 0; limb < kLimbs; ++limb) memcpy(to + limb * kLimbBytes, limbs[limb], kStretch);
        continue;
      }
      const int64_t in_unit = k % kLimbUnit;
      int8_t* const to = out + kLimbs * (k - in_unit) + in_unit / 2;
      for (int limb = 0; limb < kLimbs; ++limb)
        for (int64_t j = 0; j < kStretch / 2; ++j) {
          to[limb * kLimbUnit + j] = limbs[limb][2 * j];
          to[limb * kLimbUnit + kLimbBytes + j] = limbs[limb][2 * j + 1];
        }
    }
    scales[g] = highest / static_cast<float>(kFixedMost<kLimbs>);
    fixed_sums[g] = -Loader::kOffset * scales[g] * static_cast<float>(fixed_sum);
    group_sums[g] = sums.total();
  }
  return true;
}

// x that is of int8 already: integers, whose scale is 1.
template <class Loader>
bool split_integers(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                    float* group_sums) {
  for (int64_t k = 0; k < K; k += 2) {
    int8_t* const to = out + k / kLimbUnit * kLimbUnit + k % kLimbUnit / 2;
    to[0] = static_cast<int8_t>(x[k]);
    to[kLimbBytes] = static_cast<int8_t>(x[k + 1]);
  }
  for (int64_t g = 0; g < K / group_size; ++g) {
    int32_t total = 0;
    for (int64_t k = g * group_size; k < (g + 1) * group_size; ++k) total += static_cast<int32_t>(x[k]);
    scales[g] = 1;
    group_sums[g] = static_cast<float>(total);
    fixed_sums[g] = -Loader::kOffset * group_sums[g];
  }
  return true;
}

template <class Loader, int kLimbs>
constexpr Int8Limbs kInt8Limbs{.count = kLimbs, .split = split_limbs<Loader, kLimbs>};
template <class Loader>
constexpr Int8Limbs kInt8Limbs<Loader, kOneInt8Limb>{.count = kOneInt8Limb, .split = split_integers<Loader>};

}  // namespace
}  // namespace aoext::cpu
