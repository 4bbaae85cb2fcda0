// int4, and e2m1 doubled, by few rows of x as int8 limbs (int8_limbs.inc.h), with vectors of 16 bytes:
// y[m][n] = Σ x_scale[m][g] · scale[g][n] · Σ q x + zero_point[g][n] · Σ x.
//
// Four rows of w at a time pass by all of K. Nibbles of int4 are signed bytes where they lie, 16 q: the low ones after a shift,
// the high ones after a mask, 2 instructions for 32 weights, and the conversion of their sums takes the 16 away. Those of e2m1
// are looked up, 2 instructions more. What multiplies them, and the order of x, is in limb_sums_<it>.inc.h: sdot, or smmla where
// the limbs of a row of x, or its two columns, are two.
#pragma once

#include "common/e2m1.h"
#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_neon.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kFour = 4;  // rows of w at once
static_assert(kFloats == kFour);

// A loader gives signed bytes of a unit's codes, even and odd, and what sums of their products are.
//
//   static constexpr int kOffset          how much larger the bytes are than what they stand for
//   static constexpr bool kZeroPoints     whether panels have zero points, whose lines and scales' lie far apart in memory
struct HighNibbles {
  static constexpr int kOffset = 0;
  static constexpr bool kZeroPoints = true;
  static constexpr int kBits = 4;  // below them
  static int8x16_t even(int8x16_t bytes) { return vshlq_n_s8(bytes, kBits); }
  static int8x16_t odd(int8x16_t bytes) { return vandq_s8(bytes, vdupq_n_s8(static_cast<int8_t>(0xf0))); }
  static F32 floats(int32x4_t sums) { return (F32)vcvtq_n_f32_s32(sums, kBits); }
};

struct DoubledE2m1 {
  static constexpr int kOffset = 0;
  static constexpr bool kZeroPoints = false;
  static int8x16_t look_up(uint8x16_t codes) { return vqtbl1q_s8(load<int8x16_t>(kDoubledE2m1.values), codes); }
  static int8x16_t even(int8x16_t bytes) { return look_up(vandq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_u8(15))); }
  static int8x16_t odd(int8x16_t bytes) { return look_up(vshrq_n_u8(vreinterpretq_u8_s8(bytes), 4)); }
  static F32 floats(int32x4_t sums) { return (F32)vcvtq_f32_s32(sums); }
};

// Sums of four rows of w by kRows of x, exact in 32 bits but for three limbs: of up to 128 elements of a group, or of a unit that
// has kGroups of them. An instruction set's own:
//
//   static constexpr int kMost                        rows of x that registers hold
//   static void order(int8_t* x, int64_t K)           a row of limbs as split_limbs leaves it, as `add` takes it
//   void add(const int8x16_t (&w)[kFour], const int8_t* x, int64_t x_stride)      of a unit
//   F32 total(int m, int group) const                 four channels'
template <class Loader, int kLimbs, int kRows, int kGroups>
struct LimbSums;

// The sums of limbs as those of x: of_limb(i) are four channels', of the highest limb first.
template <class Loader, int kLimbs, class OfLimb>
inline F32 join_limbs(const OfLimb& of_limb) {
  if constexpr (kLimbs == 1) return Loader::floats(of_limb(0));
  const int32x4_t first = vaddq_s32(vshlq_n_s32(of_limb(0), 8), of_limb(1));
  if constexpr (kLimbs == 2)
    return Loader::floats(first);
  else
    return Loader::floats(first) * 256.0f + Loader::floats(of_limb(2));
}

// The codes of a unit, of which the second half may not exist.
inline int8x16_t load_unit(const uint8_t* from, bool whole) {
  return whole ? load<int8x16_t>(from) : vcombine_s8(load<int8x8_t>(from), vdup_n_s8(0));
}

template <class Loader, int kLimbs, int kRows, int kGroups>
inline void micro_kernel_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, const Int4Panel& w, int64_t first,
                               int64_t N, Ahead scales, Ahead zero_points, int64_t K, float (*acc)[kPanel]) {
  const int64_t bytes = K / 2, groups = K / w.group_size;
  const int64_t step = kGroups > 1 ? kLimbUnit : w.group_size < kPad ? w.group_size : kPad;
  const uint8_t* row[kFour];
  for (int i = 0; i < kFour; ++i) row[i] = w.packed + (first + i < N ? first + i : N - 1) * bytes;
  F32 sums[kRows] = {};
  int64_t g = 0, left = w.group_size;
  for (int64_t begin = 0; begin < K; begin += step) {
    LimbSums<Loader, kLimbs, kRows, kGroups> products;
    if (begin % kPad == 0)
      for (int i = 0; i < kFour; ++i) __builtin_prefetch(row[i] + kFour * bytes + begin / 2);
    for (int64_t k = begin; k < begin + step; k += kLimbUnit) {
      const bool whole = kGroups == 1 || K - k >= kLimbUnit;
      int8x16_t wk[kFour];
      for (int i = 0; i < kFour; ++i) wk[i] = load_unit(row[i] + k / 2, whole);
      products.add(wk, x + kLimbs * k, x_stride);
    }
    for (int group = 0; group < kGroups && g + group < groups; ++group) {
      const F32 scale = floats_at(w.element, w.scale + (g + group) * w.stride + first * w.element_bytes);
      for (int m = 0; m < kRows; ++m) {
        const F32 x_scale = broadcast(of_x.scales[m * groups + g + group]);
        sums[m] = multiply_add(scale, x_scale * products.total(m, group), sums[m]);
      }
    }
    if constexpr (Loader::kZeroPoints) {
      if (left == w.group_size) {
        const F32 zero_point = floats_at(w.element, w.zero_point + g * w.stride + first * w.element_bytes);
        for (int m = 0; m < kRows; ++m) sums[m] = multiply_add(zero_point, broadcast(of_x.sums[m * groups + g]), sums[m]);
        fetch_group(&scales);
        fetch_group(&zero_points);
      }
    }
    if ((left -= step) > 0) continue;
    g += kGroups;
    left = w.group_size;
  }
  for (int m = 0; m < kRows; ++m) store(acc[m] + first, sums[m]);
}

template <class Loader, int kLimbs, int kGroups>
void macro_kernel_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N,
                        int64_t K, float (*acc)[kPanel]) {
  constexpr int64_t kParts = kPanel / kFour;  // of the next panel's groups, whose scales each four rows fetch
  const int64_t groups = K / w.group_size, part = (groups + kParts - 1) / kParts;
  each_rows<LimbSums<Loader, kLimbs, 1, kGroups>::kMost>(M, [&](auto count, int64_t m) {
    const GroupsOfX of_rows{of_x.scales + m * groups, of_x.fixed_sums + m * groups, of_x.sums + m * groups};
    for (int64_t first = 0; first < N; first += kFour) {
      const int64_t begin = first / kFour * part, end = begin + part < groups ? begin + part : groups;
      const auto ahead = [&](const char* from) {
        if (!Loader::kZeroPoints) return Ahead{};
        const int64_t line = kPanel * w.element_bytes;
        return Ahead{from + begin * w.stride + line, w.stride, m == 0 && N == kPanel && begin < end ? end - begin : 0, line};
      };
      micro_kernel_limbs<Loader, kLimbs, decltype(count)::count, kGroups>(x + m * x_stride, x_stride, of_rows, w, first, N,
                                                                          ahead(w.scale), ahead(w.zero_point), K, acc + m);
    }
  });
}

template <class Loader, int kLimbs>
void dot_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
               float (*acc)[kPanel]) {
  if constexpr (!Loader::kZeroPoints)
    if (w.group_size < kLimbUnit) return macro_kernel_limbs<Loader, kLimbs, 2>(x, x_stride, of_x, M, w, N, K, acc);
  macro_kernel_limbs<Loader, kLimbs, 1>(x, x_stride, of_x, M, w, N, K, acc);
}

template <class Loader, int kLimbs>
bool split_ordered(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                   float* group_sums) {
  if (!kInt8Limbs<Loader, kLimbs>.split(x, K, group_size, out, scales, fixed_sums, group_sums)) return false;
  LimbSums<Loader, kLimbs, 1, 1>::order(out, K);
  return true;
}

template <int kLimbs, class Loader = HighNibbles>
constexpr GemvLimbs kGemvLimbs{.limbs = {.count = kLimbs, .split = split_ordered<Loader, kLimbs>},
                               .dot = dot_limbs<Loader, kLimbs>};

}  // namespace
}  // namespace aoext::cpu
