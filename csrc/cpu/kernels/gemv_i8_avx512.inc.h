// int8 by int8 for few rows of x, exact: vpdpbusd, in the order of gemv_order.inc.h.
#pragma once

#include "cpu/kernels/gemv_order.inc.h"
#include "cpu/kernels/vectors_avx512.inc.h"

namespace aoext::cpu {
namespace {

// As micro_kernel_8bit_bf16, exact.
template <int M, int N>
inline void micro_kernel_i8(const int8_t* x, const int8_t* w, int64_t K, int64_t n, const int8_t* next, int32_t (*acc)[kPanel]) {
  constexpr int kChains = M * N < 4 ? 4 / (M * N) : 1;
  I32 sums[kChains][M][N] = {};
  // As DotI8 of gemm_avx512.inc.h, w + 128 by x; the sums of 128 · x come off at the end.
  const __m512i flip = _mm512_set1_epi8(-128);
  I32 x_sums[M] = {};
  const auto add = [&](int64_t k, I32(&to)[M][N]) AOEXT_INLINE {
    __m512i wk[N];
    for (int i = 0; i < N; ++i) {
      fetch_weights(next + i * n + k);
      wk[i] = _mm512_xor_si512(load<__m512i>(w + i * K + k), flip);
    }
    for (int m = 0; m < M; ++m) {
      const __m512i xk = load_once<__m512i>(x + m * K + k);
      x_sums[m] = (I32)_mm512_dpbusd_epi32((__m512i)x_sums[m], flip, xk);
      for (int i = 0; i < N; ++i) to[m][i] = (I32)_mm512_dpbusd_epi32((__m512i)to[m][i], wk[i], xk);
    }
  };
  int64_t k = 0;
  for (; k + kChains * kLine <= n; k += kChains * kLine)
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) add(k + c * kLine, sums[c]);
  for (; k + kLine <= n; k += kLine) add(k, sums[0]);
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i) {
      I32 total = sums[0][m][i] - x_sums[m];
      for (int c = 1; c < kChains; ++c) total += sums[c][m][i];
      acc[m][i] += sum<int32_t>(total);
      for (int64_t rest = k; rest < n; ++rest) acc[m][i] += x[m * K + rest] * w[i * K + rest];
    }
}

void dot_i8(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kPanel]) {
  constexpr int kRowsOfW = 1;
  each_piece<kRowsOfW>(
      M, N, K, sizeof *x, acc, [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
        micro_kernel_i8<decltype(inputs)::count, decltype(rows)::count>(x + m * K + begin, w + i * K + begin, K, n, w + next,
                                                                        reinterpret_cast<int32_t (*)[kPanel]>(&acc[m][i]));
      });
}

constexpr GemvI8 kGemvI8{.dot = dot_i8};

}  // namespace
}  // namespace aoext::cpu
