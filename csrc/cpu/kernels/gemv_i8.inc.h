// int8 by int8 for few rows of x, exact: bytes as they lie, where a block would be written and read for few products. An
// instruction set brings 16 bytes as MultiplyI8 takes them (gemm_i8_*.inc.h), load_i8, and says whether one row of x takes the
// weights as one stream, kOneStream: rows side by side are short ones, of which the hardware fetches less ahead.
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

// Returns how much of K it did.
template <int M, int N>
inline int64_t micro_kernel_i8(const int8_t* x, int64_t x_stride, const int8_t* w, int64_t K, int32_t (*acc)[kPanel]) {
  int64_t k = 0;
  I32 sums[M][N] = {};
  for (; k + 16 <= K; k += 16) {
    for (int n = 0; n < N && k % kLine == 0; ++n) fetch_weights(w + (N + n) * K + k);  // the next rows
    typename MultiplyI8::Vector wk[N];
    for (int n = 0; n < N; ++n) wk[n] = load_i8(w + n * K + k);
    for (int m = 0; m < M; ++m) {
      const typename MultiplyI8::Vector xk = load_i8(x + m * x_stride + k);
      for (int n = 0; n < N; ++n) sums[m][n] = MultiplyI8::multiply_add(sums[m][n], wk[n], xk);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = sum<int32_t>(sums[m][n]);
  return k;
}

void dot_i8(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kPanel]) {
  each_rows<kFewRows>(M, [&](auto count, int64_t first) {
    constexpr int kCount = decltype(count)::count;
    const auto take = [&](auto rows, int64_t n) {
      constexpr int kRows = decltype(rows)::count;
      const auto out = reinterpret_cast<int32_t (*)[kPanel]>(&acc[first][n]);
      const int64_t done = micro_kernel_i8<kCount, kRows>(x + first * K, K, w + n * K, K, out);
      for (int m = 0; m < kCount; ++m)
        for (int i = 0; i < kRows; ++i)
          for (int64_t k = done; k < K; ++k) out[m][i] += x[(first + m) * K + k] * w[(n + i) * K + k];
    };
    int64_t n = 0;
    if constexpr (kCount > 1 || !kOneStream)
      for (; n + kNR <= N; n += kNR) take(Rows<kNR>(), n);
    for (; n < N; ++n) take(Rows<1>(), n);
  });
}

constexpr GemvI8 kGemvI8{.dot = dot_i8};

}  // namespace
}  // namespace aoext::cpu
