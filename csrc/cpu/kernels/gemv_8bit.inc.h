// 8-bit weights by few rows of x, in float32: the weight's bytes become floats in registers, and are read once.
//
// A format comes in as a loader (weights_8bit.inc.h). e4m3's takes 4 instructions for 16 values, 6 with AVX2: its factor waits
// for the sums, and so does NaN, of which a row of w keeps only whether it has one.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

// N rows of w by M of x.
template <class Loader, int M, int N>
inline void micro_kernel_8bit(const float* x, int64_t x_stride, const char* w, int64_t K, float (*acc)[kPanel]) {
  constexpr int64_t kStep = Loader::kVectors * kFloats;
  F32 sums[M][N] = {};
  typename Loader::Nan seen[N];
  const auto add_line = [&](int64_t k, const char* from, int64_t stride) {
    for (int n = 0; n < N; ++n) seen[n].see(from + n * stride, kLine);
    for (int64_t begin = 0; begin < kLine; begin += kStep) {
      F32 wk[N][Loader::kVectors];
      for (int n = 0; n < N; ++n) Loader::load(from + n * stride + begin, wk[n]);
      for (int i = 0; i < Loader::kVectors; ++i)
        for (int m = 0; m < M; ++m) {
          const F32 xk = load<F32>(x + m * x_stride + k + begin + i * kFloats);
          for (int n = 0; n < N; ++n) sums[m][n] += xk * wk[n][i];
        }
    }
  };
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) fetch_8bit_weights<Loader>(w + (N + n) * K + k);  // the next rows
    add_line(k, w + k, K);
  }
  if (k < K) {
    char rest[N][kLine] = {};
    for (int n = 0; n < N; ++n) memcpy(rest[n], w + n * K + k, static_cast<size_t>(K - k));
    add_line(k, rest[0], kLine);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = seen[n].or_nan(sum<float>(sums[m][n]) * Loader::kFactor);
}

template <class Loader>
void macro_kernel_8bit(const float* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K, float (*acc)[kPanel]) {
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count;
    const auto out = [&](int64_t n) { return reinterpret_cast<float (*)[kPanel]>(&acc[m][n]); };
    int64_t n = 0;
    for (; n + kNR <= N; n += kNR) micro_kernel_8bit<Loader, kCount, kNR>(x + m * x_stride, x_stride, w + n * K, K, out(n));
    for (; n < N; ++n) micro_kernel_8bit<Loader, kCount, /*N=*/1>(x + m * x_stride, x_stride, w + n * K, K, out(n));
  });
}

void dot_8bit(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
              float (*acc)[kPanel]) {
  with_8bit_type(type, [&](auto of) {
    macro_kernel_8bit<Weights8Bit<decltype(of)::type>>(static_cast<const float*>(x), x_stride, M, static_cast<const char*>(w), N,
                                                       K, acc);
  });
}

void pack_x_f32(Element from, const void* row, int64_t n, void* out) { to_float(from, row, static_cast<float*>(out), n); }

constexpr Gemv8Bit kGemv8BitF32{.operand_bytes = sizeof(float), .pack_x = pack_x_f32, .dot = dot_8bit};

}  // namespace
}  // namespace aoext::cpu
