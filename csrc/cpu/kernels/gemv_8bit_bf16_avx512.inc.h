// 8-bit weights by few rows of x, in bfloat16.
//
// All values are bfloat16 exactly: 64 become so in 5 instructions (int8: 8), where floats take 19, and meet a row of x in two.
// CPUs that have AMX take longer so than by floats.
#pragma once

#include "cpu/kernels/bf16_avx512.inc.h"
#include "cpu/kernels/gemv_order.inc.h"

namespace aoext::cpu {
namespace {

// A loader: 64 values as two vectors of bfloat16. A new format (8 bits with a scale a block) is one more.
template <Element kType>
struct Bf16Of8Bit {
  static void load(__m512i values, __m512i (&out)[2]) { values_as_bf16<kType>(values, out); }
};

// n elements of N rows of w, K apart, of which what lies at `next` is fetched.
template <class Loader, int M, int N>
inline void micro_kernel_8bit_bf16(const uint16_t* x, int64_t x_stride, const char* w, int64_t K, int64_t n, const char* next,
                                   float (*acc)[kPanel]) {
  constexpr int kSums = 2 * M * N, kChains = kSums < 4 ? 4 / kSums : 1;  // so that no product waits for the one before it
  F32 sums[kChains][2][M][N] = {};
  const auto add = [&](int64_t k, const char* from, int64_t stride, F32(&to)[2][M][N]) AOEXT_INLINE {
    __m512i wk[N][2];
    for (int i = 0; i < N; ++i) Loader::load(load_once<__m512i>(from + i * stride), wk[i]);
    for (int m = 0; m < M; ++m)
      for (int half = 0; half < 2; ++half) {
        const __m512bh xk = load<__m512bh>(x + m * x_stride + k + half * 2 * kFloats);
        for (int i = 0; i < N; ++i) to[half][m][i] = (F32)_mm512_dpbf16_ps((__m512)to[half][m][i], (__m512bh)wk[i][half], xk);
      }
  };
  const auto add_line = [&](int64_t k, int chain) AOEXT_INLINE {
    for (int i = 0; i < N; ++i) fetch_weights(next + i * n + k);
    add(k, w + k, K, sums[chain]);
  };
  int64_t k = 0;
  for (; k + kChains * kLine <= n; k += kChains * kLine)
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) add_line(k + c * kLine, c);
  for (; k + kLine <= n; k += kLine) add_line(k, 0);
  if (k < n) {
    char rest[N][kLine] = {};
    for (int i = 0; i < N; ++i) memcpy(rest[i], w + i * K + k, static_cast<size_t>(n - k));
    add(k, rest[0], kLine, sums[0]);
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i) {
      F32 total = sums[0][0][m][i] + sums[0][1][m][i];
      for (int c = 1; c < kChains; ++c) total += sums[c][0][m][i] + sums[c][1][m][i];
      acc[m][i] += sum<float>(total);
    }
}

template <class Loader>
void macro_kernel_8bit_bf16(const uint16_t* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K,
                            float (*acc)[kPanel]) {
  constexpr int kRowsOfW = 2;
  each_piece<kRowsOfW>(M, N, K, sizeof *x, acc,
                       [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
                         micro_kernel_8bit_bf16<Loader, decltype(inputs)::count, decltype(rows)::count>(
                             x + m * x_stride + begin, x_stride, w + i * K + begin, K, n, w + next,
                             reinterpret_cast<float (*)[kPanel]>(&acc[m][i]));
                       });
}

void dot_8bit_bf16(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
                   float (*acc)[kPanel]) {
  with_8bit_type(type, [&](auto of) {
    macro_kernel_8bit_bf16<Bf16Of8Bit<decltype(of)::type>>(static_cast<const uint16_t*>(x), x_stride, M,
                                                           static_cast<const char*>(w), N, K, acc);
  });
}

// In the order of values_as_bf16.
void pack_x_bf16(Element from, const void* row, int64_t n, void* out) {
  uint16_t* const to = static_cast<uint16_t*>(out);
  to_bf16(from, row, to, n);
  const __m512i first = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), second = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
  for (int64_t k = 0; k < n; k += kLine) {
    const __m512i a = load<__m512i>(to + k), b = load<__m512i>(to + k + 2 * kFloats);
    store(to + k, _mm512_maskz_permutex2var_epi64(0xff, a, first, b));
    store(to + k + 2 * kFloats, _mm512_maskz_permutex2var_epi64(0xff, a, second, b));
  }
}

constexpr Gemv8Bit kGemv8BitBf16{.operand_bytes = sizeof(uint16_t), .pack_x = pack_x_bf16, .dot = dot_8bit_bf16};

}  // namespace
}  // namespace aoext::cpu
