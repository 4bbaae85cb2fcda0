// int4 by few rows of x as int8 limbs (int8_limbs.inc.h), a row of w after the other:
// y[m][n] = Σ scale[g][n] · (x_scale[m][g] · Σ u x), beside it what zero points and signs add.
//
// A row of w passes by all of K, by steps of up to 128 weights, 64 bytes, so that w is one stream in the order in which it lies,
// fetched 8 KB ahead: at the pace of a plain read. Rows side by side are as many streams, each too short for the hardware to run
// ahead in. Scales lie [K/group_size, N]: a line of memory is those of a panel's rows for one group, far from the next group's.
// They are staged once for each panel as floats, a vector of rows side by side, where zero points leave but a sum for each row. A
// burst of such lines from memory would stop all else: an eighth of the next panel's is fetched while four rows of this one are
// multiplied, and staged behind them.
#pragma once

#include "cpu/kernels/convert.inc.h"
#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/unsigned_nibbles.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kRowsTogether = 4;  // rows of w whose sums are added up together

// Σ u x in fixed point over kUnits units, whose lanes add up to it, exact in 32 bits: limb_sums_<it>.inc.h.
template <int kLimbs, int kUnits>
I32 limb_sums(const U32 (&even)[kUnits], const U32 (&odd)[kUnits], const int8_t* x);

// ---- scales --------------------------------------------------------------------------------------------

// N columns of a line, and nothing behind them.
inline void columns(Element from, const char* line, int64_t N, F32 (&out)[kPanel / kFloats]) {
  if (N == kPanel) {
    const int64_t bytes = kFloats * (from == Element::fp32 ? 4 : 2);
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
    for (int v = 0; v < kVectors; ++v) store(out.scales + (v * groups + g) * kFloats, scale[v]);
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

// Into the second cache: where a stride is a power of two, all of these lines are of one set of the first.
template <class Loader>
inline void fetch_scales(const Int4Panel& w, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g)
    for (int64_t i = g * w.stride; i < g * w.stride + kPanel * w.element_bytes; i += kLine) {
      fetch_weights(w.scale + i);
      if constexpr (Loader::kZeroPoints) fetch_weights(w.zero_point + i);
    }
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

// How far ahead of their use weights are fetched: a row of a few KB is too short for the hardware to run ahead in.
constexpr int64_t kWeightsAhead = 8192;

// Bytes of x that stay in the first cache beside scales.
constexpr int64_t kPieceOfX = 16384;
constexpr int64_t kMostScalesOfX = kPieceOfX / kTwoInt8Limbs / kLimbUnit;

// `count` elements of a row of w by M rows of x, of groups from g on: adds to `sums` what adds up to the products. A step is
// kUnits units of one group, or one unit, of kGroups groups. A scale of x, 2⁻²³ of it, meets a total first: times a scale of w it
// may be subnormal where the result is not. Integers have none.
template <class Loader, int kLimbs, int M, int kGroups, int kUnits>
inline void micro_kernel_staged(const int8_t* x, int64_t x_stride, const F32* x_scales, int64_t x_scales_of_row,
                                const uint8_t* row, int64_t weights_ahead, int64_t group_size, const float* scale, int64_t count,
                                F32 (&sums)[M]) {
  constexpr int64_t kStep = kUnits * kLimbUnit;
  F32 to[M], odd_steps[M] = {};  // two sums, so that a short step need not wait for the one before it
  for (int m = 0; m < M; ++m) to[m] = sums[m];
  // A step of which `elements` exist, of so many groups. Where it is whole, both are constants.
  const auto step = [&](int64_t elements, int64_t its_groups, F32(&to)[M]) AOEXT_INLINE {
    U32 even[kUnits], odd[kUnits];
    for (int unit = 0; unit < kUnits; ++unit) {
      U32 words = {};
      if (elements == kStep)
        words = load<U32>(row + unit * kLimbBytes);
      else
        memcpy(&words, row, static_cast<size_t>(elements) / 2);
      Loader::load(words, &even[unit], &odd[unit]);
    }
    const F32 s = spread<kGroups>(scale, kFloats, its_groups);
    for (int m = 0; m < M; ++m) {
      F32 total = __builtin_convertvector((limb_sums<kLimbs, kUnits>(even, odd, x + m * x_stride)), F32);
      if constexpr (kLimbs > kOneInt8Limb) total *= x_scales[m * x_scales_of_row];
      to[m] = multiply_add(s, total, to[m]);
    }
    x += kLimbs * kStep;
    row += kStep / 2;
  };
  const auto next_groups = [&] {
    scale += kGroups * kFloats;
    ++x_scales;
  };
  if (group_size <= kStep) {
    for (; count >= 2 * kStep; count -= 2 * kStep) {
      for (int64_t i = 0; i < kStep; i += kLine) fetch_weights(row + weights_ahead + i);
      step(kStep, kGroups, to);
      next_groups();
      step(kStep, kGroups, odd_steps);
      next_groups();
    }
    if (count >= kStep) {
      fetch_weights(row + weights_ahead);
      step(kStep, kGroups, to);
      next_groups();
      count -= kStep;
    }
    if (count > 0) step(count, count / group_size, to);
  } else {
    for (; count > 0; count -= group_size) {
      for (int64_t k = 0; k < group_size; k += kStep) {
        fetch_weights(row + weights_ahead);
        step(kStep, kGroups, to);
      }
      next_groups();
    }
  }
  for (int m = 0; m < M; ++m) sums[m] = to[m] + odd_steps[m];
}

// Four rows of w, one after the other by a piece of x: where that is all of it, w is read in the order in which it lies.
template <class Loader, int kLimbs, int kGroups, int kUnits>
inline void macro_kernel_staged(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w,
                                int64_t N, int64_t K, const StagedScales& scales, const NextPanel& next, float (*acc)[kPanel]) {
  constexpr int64_t kParts = kPanel / kRowsTogether;  // of the next panel's groups
  const int64_t bytes = K / 2, group_size = w.group_size, groups = K / group_size, part = (groups + kParts - 1) / kParts;
  const int64_t span = group_size > kPad ? group_size : kPad;
  const auto multiply = [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    const int64_t spans = kPieceOfX / (kCount * kLimbs * span), piece = (spans > 0 ? spans : 1) * span;
    const int64_t groups_of_piece = piece / group_size, weights_ahead = piece < K ? kRowsTogether * bytes : kWeightsAhead;
    const int64_t x_scales_of_row = (groups_of_piece + kGroups - 1) / kGroups;
    [[maybe_unused]] F32 x_scales[kLimbs > kOneInt8Limb ? kMostScalesOfX : 1];
    for (int64_t n = 0; n < N; n += kRowsTogether) {
      const int64_t begin = n / kRowsTogether * part, end = begin + part < groups ? begin + part : groups;
      const bool stages = m == 0 && next.N > 0 && begin < end;
      if (stages) fetch_scales<Loader>(next.w, begin, end);
      const int64_t rows = N - n < kRowsTogether ? N - n : kRowsTogether;
      F32 sums[kRowsTogether][kCount];
      for (int i = 0; i < kRowsTogether; ++i)
        for (F32& sum : sums[i]) sum = F32{};
      for (int64_t k = 0, g = 0; k < K; k += piece, g += groups_of_piece) {
        if constexpr (kLimbs > kOneInt8Limb)
          if (n == 0 || piece < K)
            for (int r = 0; r < kCount; ++r)
              for (int64_t i = 0; i < x_scales_of_row && g + i * kGroups < groups; ++i)
                x_scales[r * x_scales_of_row + i] =
                    spread<kGroups>(of_x.scales + (m + r) * groups + g + i * kGroups, 1, groups - g - i * kGroups);
        const int8_t* const x_piece = x + m * x_stride + kLimbs * k;
        const uint8_t* row = w.packed + n * bytes + k / 2;
        const float* scale = scales.scales + (n / kFloats * groups + g) * kFloats + n % kFloats;
        for (int64_t i = 0; i < rows; ++i, row += bytes, ++scale)
          micro_kernel_staged<Loader, kLimbs, kCount, kGroups, kUnits>(x_piece, x_stride, x_scales, x_scales_of_row, row,
                                                                       weights_ahead, group_size, scale,
                                                                       K - k < piece ? K - k : piece, sums[i]);
      }
      for (int r = 0; r < kCount; ++r) {
        const F32 of_rows[kRowsTogether] = {sums[0][r], sums[1][r], sums[2][r], sums[3][r]};
        add_sums(of_rows, &acc[m + r][n]);
      }
      if (stages) stage_groups<Loader>(of_x, M, next.w, next.N, K, begin, end, next.scales);
    }
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
