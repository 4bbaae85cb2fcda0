// 8-bit weights by few rows of x, in float32: the weight's bytes become floats in registers, and are read once.
//
// e4m3 does so in 4 instructions for 16 values, 6 with AVX2: its factor waits for the sums, and so does NaN, of which a row of w
// keeps only whether it has one.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

template <Element kType, int M, int N>
inline void dot_tile_values(const float* x, int64_t x_stride, const char* w, int64_t K, float (*acc)[kTile]) {
  using V = Values<kType>;
  constexpr int64_t kStep = V::kVectors * kFloats;
  F32 sums[M][N] = {};
  SeenNan<kType> seen[N];
  const auto add_line = [&](int64_t k, const char* from, int64_t stride) {
    for (int n = 0; n < N; ++n) seen[n].see(from + n * stride, kLine);
    for (int64_t begin = 0; begin < kLine; begin += kStep) {
      F32 wk[N][V::kVectors];
      for (int n = 0; n < N; ++n) V::load(from + n * stride + begin, wk[n]);
      for (int i = 0; i < V::kVectors; ++i)
        for (int m = 0; m < M; ++m) {
          const F32 xk = load<F32>(x + m * x_stride + k + begin + i * kFloats);
          for (int n = 0; n < N; ++n) sums[m][n] += xk * wk[n][i];
        }
    }
  };
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(w + (N + n) * K + k);  // the next rows, as dot_tile_int4 does
    add_line(k, w + k, K);
  }
  if (k < K) {
    char rest[N][kLine] = {};
    for (int n = 0; n < N; ++n) memcpy(rest[n], w + n * K + k, static_cast<size_t>(K - k));
    add_line(k, rest[0], kLine);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = seen[n].or_nan(sum<float>(sums[m][n]) * V::kFactor);
}

template <Element kType>
void dot_rows_values(const float* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K, float (*acc)[kTile]) {
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count;
    const auto out = [&](int64_t n) { return reinterpret_cast<float (*)[kTile]>(&acc[m][n]); };
    int64_t n = 0;
    for (; n + kTileRows <= N; n += kTileRows)
      dot_tile_values<kType, kCount, kTileRows>(x + m * x_stride, x_stride, w + n * K, K, out(n));
    for (; n < N; ++n) dot_tile_values<kType, kCount, 1>(x + m * x_stride, x_stride, w + n * K, K, out(n));
  });
}

void dot_values(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
                float (*acc)[kTile]) {
  with_8bit_type(type, [&](auto of) {
    dot_rows_values<decltype(of)::type>(static_cast<const float*>(x), x_stride, M, static_cast<const char*>(w), N, K, acc);
  });
}

void row_of_floats(Element from, const void* row, int64_t n, void* out) { to_float(from, row, static_cast<float*>(out), n); }

constexpr Values8 kValuesF32{.operand_bytes = sizeof(float), .input = row_of_floats, .dot = dot_values};

}  // namespace
}  // namespace aoext::cpu
