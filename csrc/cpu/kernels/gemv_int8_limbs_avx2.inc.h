// int4 by few rows of x as int8 limbs (int8_limbs.inc.h), with vectors of 32 bytes:
// y[m][n] = Σ scale[g][n] · (x_scale[m][g] · Σ u x), beside it what zero points and signs add.
//
// Four rows of w at a time pass by all of K, by steps of 128 weights, 64 bytes of each row. Scales lie [K/group_size, N]: a line
// of memory is those of a panel's rows for one group, far from the next group's. They are staged once for each panel as floats,
// four rows' side by side, where zero points leave but a sum for each row. A burst of such lines from memory would stop all else:
// an eighth of the next panel's is fetched while four rows of this one are multiplied, and staged behind them.
#pragma once

#include "common/e2m1.h"
#include "cpu/kernels/convert.inc.h"
#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/unsigned_nibbles.inc.h"
#include "cpu/kernels/vectors_avx2.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kFour = 4;  // rows of w at once
static_assert(kFloats == 2 * kFour);

// Σ u x in fixed point over kUnits units, whose lanes add up to it, exact in 32 bits: limb_sums_avx2.inc.h or
// limb_sums_avxvnni.inc.h.
template <int kLimbs, int kUnits>
I32 limb_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x);

// A loader of e2m1, whose values are integers once they are doubled.
struct DoubledE2m1 {
  static constexpr int kOffset = 12;
  static constexpr bool kZeroPoints = false;
  static void load(U32 words, U32* even, U32* odd) {
    static constexpr OfE2m1<uint8_t> kValues = [] {
      OfE2m1<uint8_t> offset{};
      for (int code = 0; code < 2 * kE2m1Sign; ++code)  // of a code whose sign bit is flipped, as unpack leaves it
        offset.values[code] = static_cast<uint8_t>(kDoubledE2m1.values[code ^ kE2m1Sign] + kOffset);
      return offset;
    }();
    const __m256i values = _mm256_broadcastsi128_si256(aoext::cpu::load<__m128i>(kValues.values));
    U32 low, high;
    unpack(words, &low, &high);
    *even = (U32)_mm256_shuffle_epi8(values, (__m256i)low);
    *odd = (U32)_mm256_shuffle_epi8(values, (__m256i)high);
  }
};

// ---- scales --------------------------------------------------------------------------------------------

// N columns of a line, and nothing behind them.
inline void columns(Element from, const char* line, int64_t N, F32 (&out)[kPanel / kFloats]) {
  if (N == kPanel) {
    const int64_t bytes = kFloats * (from == Element::f32 ? 4 : 2);
    for (int i = 0; i < kPanel / kFloats; ++i) out[i] = floats_at(from, line + i * bytes);
    return;
  }
  float values[kPanel] = {};
  to_float(from, line, values, N);
  memcpy(out, values, sizeof out);
}

// Groups [begin, end) of N rows of w.
template <class Loader>
void stage_groups(const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K, int64_t begin, int64_t end,
                  const StagedScales& out) {
  constexpr int kVectors = kPanel / kFloats;
  using Vectors = F32[kVectors];
  const int64_t groups = K / w.group_size;
  if (begin == 0) memset(out.sums, 0, static_cast<size_t>(M * kPanel) * sizeof(float));
  const auto bring = [&](int64_t g, Vectors& scale, Vectors& zero_point) AOEXT_INLINE {
    columns(w.element, w.scale + g * w.stride, N, scale);
    if constexpr (Loader::kZeroPoints) columns(w.element, w.zero_point + g * w.stride, N, zero_point);
  };
  const auto keep = [&](int64_t g, const Vectors& scale) AOEXT_INLINE {
    for (int v = 0; v < kVectors; ++v) {
      const __m256 scales = (__m256)scale[v];
      float* const four = out.scales + (2 * v * groups + g) * kFour;
      _mm_storeu_ps(four, _mm256_castps256_ps128(scales));
      _mm_storeu_ps(four + groups * kFour, _mm256_extractf128_ps(scales, 1));
    }
  };
  const auto bring_sums = [&](int64_t m, Vectors& sums) AOEXT_INLINE {
    for (int v = 0; v < kVectors; ++v) sums[v] = load<F32>(out.sums + m * kPanel + v * kFloats);
  };
  const auto keep_sums = [&](int64_t m, const Vectors& sums) AOEXT_INLINE {
    for (int v = 0; v < kVectors; ++v) store(out.sums + m * kPanel + v * kFloats, sums[v]);
  };
  // Adds a group, which is i of x's.
  const auto add = [&](int64_t i, const Vectors& scale, const Vectors& zero_point, Vectors& sums) AOEXT_INLINE {
    const F32 fixed_sum = broadcast(of_x.fixed_sums[i]), sum = broadcast(of_x.sums[i]);
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (Loader::kZeroPoints) sums[v] = multiply_add(zero_point[v], sum, sums[v]);
      sums[v] = multiply_add(scale[v], fixed_sum, sums[v]);
    }
  };
  if (M == 1) {
    Vectors sums, scale, zero_point;
    bring_sums(0, sums);
    for (int64_t g = begin; g < end; ++g) {
      bring(g, scale, zero_point);
      add(g, scale, zero_point, sums);
      keep(g, scale);
    }
    return keep_sums(0, sums);
  }
  // A row of x at a time by some groups, so that its sums stay in registers.
  constexpr int64_t kSome = 16;
  for (int64_t some = begin; some < end; some += kSome) {
    const int64_t count = end - some < kSome ? end - some : kSome;
    Vectors scale[kSome], zero_point[kSome];
    for (int64_t g = 0; g < count; ++g) {
      bring(some + g, scale[g], zero_point[g]);
      keep(some + g, scale[g]);
    }
    for (int64_t m = 0; m < M; ++m) {
      Vectors sums;
      bring_sums(m, sums);
      for (int64_t g = 0; g < count; ++g) add(m * groups + some + g, scale[g], zero_point[g], sums);
      keep_sums(m, sums);
    }
  }
}

template <class Loader>
void stage_scales(const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K, const StagedScales& out) {
  stage_groups<Loader>(of_x, M, w, N, K, 0, K / w.group_size, out);
}

// ---- products ------------------------------------------------------------------------------------------

// A lane's scale: of kGroups groups to a vector, of which `count` exist, `stride` floats apart.
template <int kGroups>
inline F32 spread(const float* scale, int64_t stride, int64_t count) {
  F32 v = broadcast(*scale);
  for (int g = 1; g < kGroups; ++g) {
    I32 lanes;
    for (int i = 0; i < kFloats; ++i) lanes[i] = i / (kFloats / kGroups) >= g ? -1 : 0;
    v = lanes ? broadcast(scale[(g < count ? g : 0) * stride]) : v;
  }
  return v;
}

// Of four rows, in each of whose totals a group is kFloats / kGroups lanes: the sums of groups, four rows' side by side, a vector
// for every other group and the one two behind it. Where a group is four lanes that is one vector.
template <int kGroups>
inline void groups_of_fours(const I32 (&totals)[kFour], I32 (&out)[kGroups / 2]) {
  if constexpr (kGroups == 2) {
    out[0] = sums_of_fours(totals);
  } else {
    const __m256i a = _mm256_hadd_epi32((__m256i)totals[0], (__m256i)totals[1]);
    const __m256i b = _mm256_hadd_epi32((__m256i)totals[2], (__m256i)totals[3]);
    out[0] = (I32)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
    out[1] = (I32)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
  }
}

// N rows of w by M of x. Sums are of kUnits units, or of one, whose groups are kGroups: where these are several, the sums of four
// rows' groups fill vectors. A scale of x, 2⁻²³ of it, meets a sum first: times a scale of w it may be subnormal where
// the result is not.
template <class Loader, int kLimbs, int M, int N, int kGroups, int kUnits>
inline void micro_kernel_staged(const int8_t* x, int64_t x_stride, const float* x_scales, const uint8_t* packed,
                                int64_t group_size, const float* scale, ScalesAhead ahead, int64_t K, float (*acc)[kPanel]) {
  constexpr bool kFours = kGroups > 1 && N == kFour;
  constexpr int64_t kStep = kUnits * kLimbUnit;
  const int64_t bytes = K / 2, groups = K / group_size;
  F32 sums[M][kFours ? 1 : N] = {};
  // A step of which `count` elements exist, of so many groups from g on. Where it is whole, both are constants.
  const auto step = [&](int64_t begin, int64_t count, int64_t g, int64_t its_groups) AOEXT_INLINE {
    fetch_group(&ahead);
    [[maybe_unused]] F32 x_scale[M];
    if constexpr (!kFours)
      for (int m = 0; m < M; ++m) x_scale[m] = spread<kGroups>(x_scales + m * groups + g, 1, its_groups);
    [[maybe_unused]] I32 totals[M][N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const uint8_t* const row = packed + n * bytes + begin / 2;
      if (kStep == kPad || begin % kPad == 0) fetch_weights(row + N * bytes);
      U32 even[kUnits], odd[kUnits];
      for (int unit = 0; unit < kUnits; ++unit) {
        U32 words = {};
        if (count == kStep)
          words = load<U32>(row + unit * kLimbBytes);
        else
          memcpy(&words, row, static_cast<size_t>(count) / 2);
        Loader::load(words, &even[unit], &odd[unit]);
      }
      for (int m = 0; m < M; ++m) {
        const I32 total = limb_sums<kLimbs, kUnits>(even, odd, x + m * x_stride + kLimbs * begin);
        if constexpr (kFours)
          totals[m][n] = total;
        else
          sums[m][n] +=
              spread<kGroups>(scale + g * kFour + n, kFour, its_groups) * (x_scale[m] * __builtin_convertvector(total, F32));
      }
    }
    if constexpr (kFours) {
      constexpr int kApart = kGroups / 2;                                          // of the groups of a vector
      const auto group = [&](int64_t i) { return g + (i < its_groups ? i : 0); };  // totals of those that don't exist are 0
      for (int j = 0; j < kApart; ++j) {
        const float *const low = scale + group(j) * kFour, *const high = scale + group(j + kApart) * kFour;
        const bool together = kGroups == 2 && its_groups == kGroups;
        const F32 s = together ? load<F32>(low) : (F32)_mm256_set_m128(_mm_loadu_ps(high), _mm_loadu_ps(low));
        for (int m = 0; m < M; ++m) {
          I32 of_groups[kApart];
          groups_of_fours<kGroups>(totals[m], of_groups);
          const float* const of_row = x_scales + m * groups;
          const F32 xs = (F32)_mm256_set_m128(_mm_broadcast_ss(of_row + group(j + kApart)), _mm_broadcast_ss(of_row + group(j)));
          sums[m][0] += s * (xs * __builtin_convertvector(of_groups[j], F32));
        }
      }
    }
  };
  const int64_t span = kUnits == 1 ? kStep : group_size;
  int64_t begin = 0, g = 0;
  for (; begin + span <= K; g += kGroups)
    for (const int64_t end = begin + span; begin < end; begin += kStep) step(begin, kStep, g, kGroups);
  if (kUnits == 1 && begin < K) step(begin, K - begin, g, groups - g);
  for (int m = 0; m < M; ++m) {
    F32 fours = sums[m][0];
    if constexpr (!kFours && N == kFour) fours = sums_of_fours(sums[m]);
    if constexpr (N == kFour) {
      const __m128 total = _mm_add_ps(_mm256_castps256_ps128((__m256)fours), _mm256_extractf128_ps((__m256)fours, 1));
      _mm_storeu_ps(acc[m], _mm_add_ps(total, _mm_loadu_ps(acc[m])));
    } else {
      for (int n = 0; n < N; ++n) acc[m][n] += sum<float>(sums[m][n]);
    }
  }
}

template <class Loader, int kLimbs, int kGroups, int kUnits>
inline void macro_kernel_staged(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w,
                                int64_t N, int64_t K, const StagedScales& scales, const NextPanel& next, float (*acc)[kPanel]) {
  constexpr int64_t kParts = kPanel / kFour;  // of the next panel's groups
  const int64_t groups = K / w.group_size, part = (groups + kParts - 1) / kParts;
  const auto multiply = [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    const auto rows = [&](auto of_w, int64_t n, const ScalesAhead& ahead) {
      micro_kernel_staged<Loader, kLimbs, kCount, decltype(of_w)::count, kGroups, kUnits>(
          x + m * x_stride, x_stride, of_x.scales + m * groups, w.packed + n * (K / 2), w.group_size,
          scales.scales + n / kFour * groups * kFour + n % kFour, ahead, K, reinterpret_cast<float (*)[kPanel]>(&acc[m][n]));
    };
    int64_t n = 0;
    for (; n + kFour <= N; n += kFour) {
      const int64_t begin = n / kFour * part, end = begin + part < groups ? begin + part : groups;
      const bool stages = m == 0 && next.N > 0 && begin < end;
      const auto ahead = [&](const char* from) {
        return Ahead{from + begin * w.stride, w.stride, stages ? end - begin : 0, kPanel * w.element_bytes};
      };
      rows(Rows<kFour>(), n, {ahead(next.w.scale), ahead(next.w.zero_point)});
      if (stages) stage_groups<Loader>(of_x, M, next.w, next.N, K, begin, end, next.scales);
    }
    for (; n < N; ++n) rows(Rows<1>(), n, {});
  };
  memcpy(acc, scales.sums, static_cast<size_t>(M * kPanel) * sizeof(float));
  each_rows<kFewRows>(M, multiply);
}

template <class Loader, int kLimbs>
void dot_staged(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
                const StagedScales& scales, const NextPanel& next, float (*acc)[kPanel]) {
  const int64_t in_unit = kLimbUnit / w.group_size;
  if (in_unit == 4)
    return macro_kernel_staged<Loader, kLimbs, /*kGroups=*/4, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, scales, next, acc);
  if (in_unit == 2)
    return macro_kernel_staged<Loader, kLimbs, /*kGroups=*/2, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, scales, next, acc);
  if (in_unit == 1)
    return macro_kernel_staged<Loader, kLimbs, /*kGroups=*/1, /*kUnits=*/1>(x, x_stride, of_x, M, w, N, K, scales, next, acc);
  macro_kernel_staged<Loader, kLimbs, /*kGroups=*/1, kPad / kLimbUnit>(x, x_stride, of_x, M, w, N, K, scales, next, acc);
}

template <int kLimbs, class Loader = UnsignedNibbles>
constexpr GemvLimbsStaged kGemvLimbsStaged{
    .limbs = kInt8Limbs<Loader, kLimbs>, .stage = stage_scales<Loader>, .dot = dot_staged<Loader, kLimbs>};

}  // namespace
}  // namespace aoext::cpu
