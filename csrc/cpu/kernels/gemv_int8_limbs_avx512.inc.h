// int4 by few rows of x as int8 limbs (int8_limbs.inc.h), with vectors of 64 bytes: vpdpbusd.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

// Sums of one step of up to 128 elements: Σ u x in fixed point, of one limb and of two exact, of three rounded to a float.
template <int kLimbs>
struct LimbSums {
  I32 sums = {}, last = {};  // of the first two limbs, and of a third
  void add(U32 even, U32 odd, const int8_t* x) {
    const auto products = [&](I32 to, const int8_t* limb) {
      const __m512i evens = _mm512_dpbusd_epi32((__m512i)to, (__m512i)even, load<__m512i>(limb));
      return (I32)_mm512_dpbusd_epi32(evens, (__m512i)odd, load<__m512i>(limb + kLimbBytes));
    };
    if constexpr (kLimbs == 1)
      sums = products(sums, x);
    else
      sums += products(products(I32{}, x) << 8, x + kLimbUnit);
    if constexpr (kLimbs == 3) last = products(last, x + 2 * kLimbUnit);
  }
  auto total() const {
    if constexpr (kLimbs == 3)
      return __builtin_convertvector(sums, F32) * 256.0f + __builtin_convertvector(last, F32);
    else
      return sums;
  }
};

// Lane n of a vector is row n's: its sums of each group, from those of four rows at a time.
template <int kGroups, class V>
inline void groups_of_rows(const V (&fours)[kFloats / 4], V (&out)[kGroups]) {
  const auto even = [](V a, V b) { return (V)_mm512_maskz_shuffle_i32x4(0xffff, (__m512i)a, (__m512i)b, 0x88); };
  const auto odd = [](V a, V b) { return (V)_mm512_maskz_shuffle_i32x4(0xffff, (__m512i)a, (__m512i)b, 0xdd); };
  const V a = even(fours[0], fours[1]), b = odd(fours[0], fours[1]), c = even(fours[2], fours[3]), d = odd(fours[2], fours[3]);
  if constexpr (kGroups == 4) {
    out[0] = even(a, c);
    out[1] = even(b, d);
    out[2] = odd(a, c);
    out[3] = odd(b, d);
    return;
  }
  const V first = even(a + b, c + d), second = odd(a + b, c + d);
  if constexpr (kGroups == 2) {
    out[0] = first;
    out[1] = second;
  } else {
    out[0] = first + second;
  }
}

// Into which cache the next panel is fetched. CPUs that have AMX gain nothing by the first.
constexpr int kIntoFirstCache = 3, kIntoSecondCache = 2;

// How many groups ahead of their use scales are fetched: some µs of weights.
constexpr int64_t kScalesAhead = 32;

// Up to kPanel rows of w by M of x, a line of each row at a time, in parts of kUnits units, which are of kGroups groups: so lines
// come once, those of scales too. The next panel's weights are fetched in the order in which they lie. Not inline: its loop needs
// all registers.
template <class Loader, int kLimbs, int kNextPanel, int M, int kGroups, int kUnits>
AOEXT_NOINLINE void micro_kernel_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, const Int4Panel& w, int64_t N,
                                       bool fetch, int64_t K, float (*acc)[kPanel]) {
  constexpr int kPanelVectors = kPanel / kFloats, kFours = kFloats / 4;
  constexpr int64_t kPart = kUnits * kLimbUnit;
  constexpr int kParts = kPad / kPart;
  const int64_t bytes = K / 2, groups = K / w.group_size, line = kPanel * w.element_bytes;
  const uint8_t* row[kPanel];
  for (int64_t n = 0; n < kPanel; ++n) row[n] = w.packed + (n < N ? n : N - 1) * bytes;
  const uint8_t* next = w.packed + kPanel * bytes;
  const int64_t ahead = kScalesAhead < groups ? kScalesAhead : groups;
  using Totals = decltype(LimbSums<kLimbs>().total());
  F32 sums[M][kPanelVectors] = {};

  // A part, of which w is `at` bytes from the starts of rows, by kFloats of these from row `n` on: fours[m][i] are sums of rows 4
  // i to 4 i + 3.
  const auto multiply = [&](int64_t begin, int64_t at, int n, Totals(&fours)[M][kFours]) AOEXT_INLINE {
    for (int four = 0; four < kFours; ++four) {
      for (int64_t i = 0; fetch && i < 4 * kPart / 2; i += kLine, next += kLine) __builtin_prefetch(next, 0, kNextPanel);
      U32 even[4][kUnits], odd[4][kUnits];
      for (int i = 0; i < 4; ++i)
        for (int u = 0; u < kUnits; ++u)
          Loader::load(load_once<U32>(row[n + four * 4 + i] + at + u * kLimbBytes), &even[i][u], &odd[i][u]);
      for (int m = 0; m < M; ++m) {
        Totals totals[4];
        for (int i = 0; i < 4; ++i) {
          LimbSums<kLimbs> part;
          for (int u = 0; u < kUnits; ++u) part.add(even[i][u], odd[i][u], x + m * x_stride + kLimbs * (begin + u * kLimbUnit));
          totals[i] = part.total();
        }
        fours[m][four] = sums_of_fours(totals);
      }
    }
  };
  // What `multiply` left, with the scales of `count` groups from `first` on.
  bool starts = true;  // whether they start here
  const auto add = [&](const Totals(&fours)[M][kFours], int vector, int64_t first, int64_t count) AOEXT_INLINE {
    F32 scale[kGroups] = {}, zero_point[kGroups] = {};
    for (int j = 0; j < kGroups && j < count; ++j) {
      const int64_t from = (first + j) * w.stride + vector * kFloats * w.element_bytes;
      scale[j] = floats_at(w.element, w.scale + from);
      if (starts) zero_point[j] = floats_at(w.element, w.zero_point + from);
    }
    for (int m = 0; m < M; ++m) {
      Totals of_groups[kGroups];
      groups_of_rows<kGroups>(fours[m], of_groups);
      F32 total = sums[m][vector];
      for (int j = 0; j < kGroups && j < count; ++j) {
        const int64_t i = m * groups + first + j;
        F32 product = __builtin_convertvector(of_groups[j], F32) * of_x.scales[i];
        if (starts) {
          product += of_x.fixed_sums[i];
          total += zero_point[j] * of_x.sums[i];
        }
        total += scale[j] * product;
      }
      sums[m][vector] = total;
    }
  };
  constexpr bool kWithin = kGroups * kParts > 1;  // whether groups are shorter than a line
  alignas(kLine) uint8_t rest[kPanel][kLine];
  for (int64_t begin = 0, g = 0, of_group = 0; begin < K; begin += kPad) {
    int64_t at = begin / 2;
    if (kWithin && K - begin < kPad) {
      memset(rest, 0, sizeof rest);
      for (int64_t n = 0; n < kPanel; ++n)
        row[n] = static_cast<uint8_t*>(memcpy(rest[n], row[n] + at, static_cast<size_t>(bytes - at)));
      at = 0;
    }
    starts = kWithin || of_group == 0;
    const int64_t end = groups - g < kGroups * kParts ? groups : g + kGroups * kParts;
    for (int64_t i = g; fetch && starts && i < end; ++i) {
      const int64_t left = groups - i, from = left > ahead ? (i + ahead) * w.stride : (ahead - left) * w.stride + line;
      for (int64_t j = from; j < from + line; j += kLine) {
        __builtin_prefetch(w.scale + j, 0, 2);
        __builtin_prefetch(w.zero_point + j, 0, 2);
      }
    }
#pragma GCC unroll 1
    for (int vector = 0; vector < kPanelVectors; ++vector)
      for (int part = 0; part < kParts; ++part) {
        const int64_t first = g + part * kGroups;
        Totals fours[M][kFours];
        multiply(begin + part * kPart, at + part * kPart / 2, vector * kFloats, fours);
        if (end - first >= kGroups)  // as all but the last: a constant
          add(fours, vector, first, kGroups);
        else
          add(fours, vector, first, end - first);
      }
    of_group += kPad;
    if (of_group < w.group_size) continue;
    g = end;
    of_group = 0;
  }
  for (int m = 0; m < M; ++m) memcpy(acc[m], sums[m], sizeof sums[m]);
}

template <class Loader, int kLimbs, int kNextPanel, int kGroups, int kUnits>
inline void macro_kernel_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N,
                               int64_t K, float (*acc)[kPanel]) {
  const int64_t groups = K / w.group_size;
  const auto take = [&](auto count, int64_t m) {
    const GroupsOfX of_rows{of_x.scales + m * groups, of_x.fixed_sums + m * groups, of_x.sums + m * groups};
    micro_kernel_limbs<Loader, kLimbs, kNextPanel, decltype(count)::count, kGroups, kUnits>(x + m * x_stride, x_stride, of_rows,
                                                                                            w, N, m == 0, K, acc + m);
  };
  int64_t done = 0;
  for (; M - done >= 8; done += 8) take(Rows<8>(), done);
  each_rows<kFewRows>(M - done, [&](auto count, int64_t m) { take(count, done + m); });
}

template <class Loader, int kLimbs, int kNextPanel>
void dot_limbs(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
               float (*acc)[kPanel]) {
  constexpr int kUnits = kPad / kLimbUnit;
  const int64_t in_unit = kLimbUnit / w.group_size;
  if (in_unit >= 4)
    return macro_kernel_limbs<Loader, kLimbs, kNextPanel, /*kGroups=*/4, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, acc);
  if (in_unit == 2)
    return macro_kernel_limbs<Loader, kLimbs, kNextPanel, /*kGroups=*/2, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, acc);
  if (in_unit == 1)
    return macro_kernel_limbs<Loader, kLimbs, kNextPanel, /*kGroups=*/1, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, acc);
  macro_kernel_limbs<Loader, kLimbs, kNextPanel, /*kGroups=*/1, kUnits>(x, x_stride, of_x, M, w, N, K, acc);
}

template <int kLimbs, int kNextPanel>
constexpr GemvLimbs kGemvLimbs{.limbs = kInt8Limbs<UnsignedNibbles, kLimbs>,
                               .dot = dot_limbs<UnsignedNibbles, kLimbs, kNextPanel>};

}  // namespace
}  // namespace aoext::cpu
