// int4 by few rows of x as int8 limbs (int8_limbs.inc.h), with vectors of 16 bytes:
// y[m][n] = Σ x_scale[m][g] · scale[g][n] · Σ q x + zero_point[g][n] · Σ x.
//
// Four rows of w at a time pass by all of K. Nibbles are signed bytes where they lie, 16 q: the low ones after a shift, the high
// ones after a mask, 2 instructions for 32 weights, and the conversion of their sums takes the 16 away. What multiplies them,
// and the order of x, is in limb_sums_<it>.inc.h: sdot, or smmla where the limbs of a row of x, or its two columns, are two.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_neon.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kFour = 4;  // rows of w at once
static_assert(kFloats == kFour);

// How much larger signed nibbles are than what they stand for: nothing.
struct HighNibbles {
  static constexpr int kOffset = 0;
  static constexpr int kBits = 4;  // below them
  static int8x16_t even(int8x16_t bytes) { return vshlq_n_s8(bytes, kBits); }
  static int8x16_t odd(int8x16_t bytes) { return vandq_s8(bytes, vdupq_n_s8(static_cast<int8_t>(0xf0))); }
};

// Sums of four rows of w by kRows of x over up to 128 elements, exact in 32 bits but for three limbs. An instruction set's own:
//
//   static constexpr int kMost                        rows of x that registers hold
//   static void order(int8_t* x, int64_t K)           a row of limbs as split_limbs leaves it, as `add` takes it
//   void add(const int8x16_t (&w)[kFour], const int8_t* x, int64_t x_stride)      of a unit
//   F32 total(int m) const                            four channels'
template <int kLimbs, int kRows>
struct LimbSums;

// What sums of high nibbles stand for.
inline F32 from_high_nibbles(int32x4_t sums) { return (F32)vcvtq_n_f32_s32(sums, HighNibbles::kBits); }

// The sums of limbs as those of x: of_limb(i) are four channels', of the highest limb first.
template <int kLimbs, class OfLimb>
inline F32 join_limbs(const OfLimb& of_limb) {
  if constexpr (kLimbs == 1) return from_high_nibbles(of_limb(0));
  const int32x4_t first = vaddq_s32(vshlq_n_s32(of_limb(0), 8), of_limb(1));
  if constexpr (kLimbs == 2)
    return from_high_nibbles(first);
  else
    return from_high_nibbles(first) * 256.0f + from_high_nibbles(of_limb(2));
}

template <int kLimbs, int kRows>
inline void micro_kernel_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, const Int4Panel& w, int64_t first,
                               int64_t N, Ahead scales, Ahead zero_points, int64_t K, float (*acc)[kPanel]) {
  const int64_t bytes = K / 2, groups = K / w.group_size, step = w.group_size < kPad ? w.group_size : kPad;
  const uint8_t* row[kFour];
  for (int i = 0; i < kFour; ++i) row[i] = w.packed + (first + i < N ? first + i : N - 1) * bytes;
  F32 sums[kRows] = {};
  int64_t g = 0, left = w.group_size;
  for (int64_t begin = 0; begin < K; begin += step) {
    LimbSums<kLimbs, kRows> products;
    if (begin % kPad == 0)
      for (int i = 0; i < kFour; ++i) __builtin_prefetch(row[i] + kFour * bytes + begin / 2);
    for (int64_t k = begin; k < begin + step; k += kLimbUnit) {
      int8x16_t wk[kFour];
      for (int i = 0; i < kFour; ++i) wk[i] = load<int8x16_t>(row[i] + k / 2);
      products.add(wk, x + kLimbs * k, x_stride);
    }
    const int64_t from = g * w.stride + first * w.element_bytes;
    const F32 scale = floats_at(w.element, w.scale + from);
    for (int m = 0; m < kRows; ++m)
      sums[m] = multiply_add(scale, broadcast(of_x.scales[m * groups + g]) * products.total(m), sums[m]);
    if (left == w.group_size) {
      const F32 zero_point = floats_at(w.element, w.zero_point + from);
      for (int m = 0; m < kRows; ++m) sums[m] = multiply_add(zero_point, broadcast(of_x.sums[m * groups + g]), sums[m]);
      fetch_group(&scales);
      fetch_group(&zero_points);
    }
    if ((left -= step) > 0) continue;
    ++g;
    left = w.group_size;
  }
  for (int m = 0; m < kRows; ++m) store(acc[m] + first, sums[m]);
}

template <int kLimbs>
void dot_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
               float (*acc)[kPanel]) {
  constexpr int64_t kParts = kPanel / kFour;  // of the next panel's groups, whose scales each four rows fetch
  const int64_t groups = K / w.group_size, part = (groups + kParts - 1) / kParts;
  each_rows<LimbSums<kLimbs, 1>::kMost>(M, [&](auto count, int64_t m) {
    const GroupsOfX of_rows{of_x.scales + m * groups, of_x.fixed_sums + m * groups, of_x.sums + m * groups};
    for (int64_t first = 0; first < N; first += kFour) {
      const int64_t begin = first / kFour * part, end = begin + part < groups ? begin + part : groups;
      const auto ahead = [&](const char* from) {
        const int64_t line = kPanel * w.element_bytes;
        return Ahead{from + begin * w.stride + line, w.stride, m == 0 && N == kPanel && begin < end ? end - begin : 0, line};
      };
      micro_kernel_limbs<kLimbs, decltype(count)::count>(x + m * x_stride, x_stride, of_rows, w, first, N, ahead(w.scale),
                                                         ahead(w.zero_point), K, acc + m);
    }
  });
}

template <int kLimbs>
bool split_ordered(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                   float* group_sums) {
  if (!kInt8Limbs<HighNibbles, kLimbs>.split(x, K, group_size, out, scales, fixed_sums, group_sums)) return false;
  LimbSums<kLimbs, 1>::order(out, K);
  return true;
}

template <int kLimbs>
constexpr GemvLimbs kGemvLimbs{.limbs = {.count = kLimbs, .split = split_ordered<kLimbs>}, .dot = dot_limbs<kLimbs>};

}  // namespace
}  // namespace aoext::cpu
