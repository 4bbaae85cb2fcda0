// int4 by few rows of x, in float32: the weight's words are read once.
//
// A vector of words is 8 · kFloats weights: nibble i of all words at a time becomes floats and meets x, which lies in that
// order. Sums of a group are scaled once: w·x = Σ scale · (Σ q x) + zero_point · Σ x. For one row of x a vector of words costs
// 8 shifts, 8 conversions (AVX2: and 8 shifts more) and 8 multiply-adds.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

// A loader: what the codes of a vector of words stand for, nibble i of each. A new format (codes of a table of 16 values) is one
// more.
struct SignedNibbles {
  static F32 values(U32 words, int i) { return nibble(words, i); }
};

constexpr int64_t kUnit = 8 * kFloats;
static_assert(kPad % kUnit == 0, "packed rows are whole vectors");

// Lane i has the scale of the group that word i belongs to: groups of 8 << shift weights, kPanel floats from one to the next, of
// which `count` are left.
inline F32 spread(const float* scale, int shift, int64_t count) {
  F32 v = {};
  I32 lanes;
  for (int i = 0; i < kFloats; ++i) lanes[i] = i;
  lanes >>= shift;
  const int groups = kFloats >> shift;
  for (int g = 0; g < groups && g < count; ++g) v = lanes == g ? broadcast(scale[g * kPanel]) : v;
  return v;
}

// How scales apply: between steps of a group, or of a vector of words where that has several groups.
struct Steps {
  int64_t groups;  // of a step
  int shift = 0;   // words of a group, where a step has several: 2 to this power

  Steps(int64_t group_size, int64_t unit) : groups(group_size < unit ? unit / group_size : 1) {
    while (groups > 1 && (8 << shift) < group_size) ++shift;
  }
  F32 scale(const float* from, int64_t left) const { return groups > 1 ? spread(from, shift, left) : broadcast(*from); }
};

void pack_x_int4(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums) {
  for (int64_t begin = 0; begin < K; begin += kUnit)
    for (int i = 0; i < 8; ++i)
      for (int lane = 0; lane < kFloats; ++lane) {
        const int64_t k = begin + 8 * lane + i;
        out[begin + i * kFloats + lane] = k < K ? x[k] : 0;
      }
  for (int64_t g = 0; g < K / group_size; ++g) {
    double s = 0;
    for (int64_t k = g * group_size; k < (g + 1) * group_size; ++k) s += x[k];
    group_sums[g] = static_cast<float>(s);
  }
}

// N rows of w at once; where they have few sums, the nibbles of a word alternate between two of each.
template <class Loader, int M, int N>
inline void micro_kernel_int4(const float* x, int64_t x_stride, const Int4Row& w, int64_t K, float (*acc)[kPanel]) {
  constexpr int kWays = M * N <= 4 ? 2 : 1;
  const int64_t bytes = K / 2, groups = K / w.group_size;
  const Steps steps(w.group_size, kUnit);
  const int64_t step = w.group_size < kUnit ? kUnit : w.group_size;
  F32 sums[M][N] = {};
  for (int64_t begin = 0, g = 0; begin < K; begin += step, g += steps.groups) {
    F32 part[N][M][kWays] = {};
    const auto add = [&](int64_t k, int n, U32 words) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const F32 q = Loader::values(words, i);
        for (int m = 0; m < M; ++m) part[n][m][i % kWays] += load<F32>(x + m * x_stride + k + i * kFloats) * q;
      }
    };
    const int64_t end = begin + step < K ? begin + step : K;
    int64_t k = begin;
    for (; k + kUnit <= end; k += kUnit) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const uint8_t* const from = w.packed + n * bytes + k / 2;
        fetch_weights_to_convert(from + N * bytes);  // the next rows: each is too short for the hardware to run ahead
        add(k, n, load<U32>(from));
      }
    }
    if (k < end) {
      for (int n = 0; n < N; ++n) {
        U32 words = {};
        memcpy(&words, w.packed + n * bytes + k / 2, static_cast<size_t>(end - k) / 2);
        add(k, n, words);
      }
    }
    for (int n = 0; n < N; ++n) {
      const F32 s = steps.scale(w.scale + g * kPanel + n, groups - g);
      for (int m = 0; m < M; ++m)
        for (int way = 0; way < kWays; ++way) sums[m][n] += s * part[n][m][way];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] += sum<float>(sums[m][n]);
}

// acc[n] += Σ factor(g) · terms[g][n] over the groups.
template <class Factor>
inline void add_terms(const float* terms, int64_t groups, const Factor& factor, float* acc) {
  F32 sums[kPanel / kFloats];
  memcpy(sums, acc, sizeof sums);
  for (int64_t g = 0; g < groups; ++g)
    for (int i = 0; i < kPanel / kFloats; ++i) sums[i] += load<F32>(terms + g * kPanel + i * kFloats) * factor(g);
  memcpy(acc, sums, sizeof sums);
}

// body(Rows<of w>, row, acc) for kRows rows of w at a time, then one by one.
template <int kRows, class Body>
inline void each_rows_of_int4(const Int4Row& first, int64_t N, int64_t K, float (*acc)[kPanel], const Body& body) {
  int64_t n = 0;
  const auto take = [&](auto rows) {
    body(rows, Int4Row{first.packed + n * (K / 2), first.scale + n, first.zero_point + n, first.group_size},
         reinterpret_cast<float (*)[kPanel]>(&acc[0][n]));
    n += decltype(rows)::count;
  };
  while (N - n >= kRows) take(Rows<kRows>());
  while (n < N) take(Rows<1>());
}

template <class Loader>
void dot_int4(const float* x, int64_t x_stride, const float* group_sums, int64_t M, const Int4Row& first, int64_t N, int64_t K,
              float (*acc)[kPanel]) {
  const int64_t groups = K / first.group_size;
  for (int64_t m = 0; m < M; ++m) {
    memset(acc[m], 0, sizeof acc[m]);
    add_terms(first.zero_point, groups, [&](int64_t g) { return group_sums[m * groups + g]; }, acc[m]);
  }
  each_rows<kFewRows>(M, [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    constexpr int kRows = kCount == 1 || (kCount == 2 && kRegisters >= 32) ? 4 : 2;  // as many sums as registers hold twice
    each_rows_of_int4<kRows>(first, N, K, acc + m, [&](auto rows, const Int4Row& w, float (*out)[kPanel]) {
      micro_kernel_int4<Loader, kCount, decltype(rows)::count>(x + m * x_stride, x_stride, w, K, out);
    });
  });
}

constexpr GemvInt4 kGemvInt4{.pack_x = pack_x_int4, .dot = dot_int4<SignedNibbles>};

}  // namespace
}  // namespace aoext::cpu
