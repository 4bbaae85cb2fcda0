// Weights with a scale a block by few rows of x: codes become values in registers and are read once. The values of a group meet
// x first, and its scale once for all of them, or, where a vector has several groups, each lane meets that of its group.
//
// Codes of 4 bits come as in gemv_int4.inc.h: a vector of words, nibble i of all of them at a time, by a look-up of 16 floats,
// which is exact whatever the table holds. For one row of x a vector of words costs 8 shifts, 8 look-ups (AVX2: of 4
// instructions) and 8 multiply-adds.
#pragma once

#include "cpu/kernels/blockwise.inc.h"
#include "cpu/kernels/gemv_8bit.inc.h"
#include "cpu/kernels/gemv_order.inc.h"

namespace aoext::cpu {
namespace {

// Which of a row's scales stands at element `begin`, and on from there by kStep elements, which have kGroups scales.
template <int64_t kStep, int64_t kGroups>
class ScaleCursor {
 public:
  ScaleCursor(int64_t group_size, int64_t begin) : group_size_(group_size), left_(group_size) {
    if (begin == 0) return;
    at_ = begin / group_size;
    left_ -= begin % group_size;
  }
  int64_t at() const { return at_; }
  void advance() {
    if constexpr (kGroups > 1) {
      at_ += kGroups;
    } else if ((left_ -= kStep) <= 0) {
      ++at_;
      left_ += group_size_;
    }
  }

 private:
  int64_t group_size_, at_ = 0, left_;
};

// ---- operands whose lanes add up kUnit elements ------------------------------------------------------------------------

// A loader: a unit of kUnit elements as kVectors vectors of operands, which meet x in the order of multiply_add. Lanes of their
// products are of kUnit / kFloats elements each, or four of them of four times as many, which follow one another.
//
//   using Operand, Unit, Vector
//   static constexpr int kUnit, kVectors, kBytes
//   Unit unit(const char* from) const
//   Vector vector(const Unit& unit, int i) const
//   static F32 multiply_add(F32 sums, Vector w, const Operand* x)

// n elements from `begin` on of N rows of w, of which what lies at `next` is fetched. A unit has kGroups scales.
template <class Loader, int kGroups, int M, int N>
inline void micro_kernel_units(const Loader& loader, const typename Loader::Operand* x, int64_t x_stride, const BlockwiseRows& w,
                               int64_t begin, int64_t n, const char* next, float (*acc)[kPanel]) {
  constexpr int64_t kUnit = Loader::kUnit, kBytes = Loader::kBytes;
  constexpr int kVectors = Loader::kVectors, kWays = M * N <= 2 ? 2 : 1;  // so that no product waits for the one before it
  const float* scale_rows[N];
  for (int i = 0; i < N; ++i) scale_rows[i] = w.scale_rows[i];
  F32 sums[M][N] = {};
  const auto add = [&](int64_t k, const char* from, int64_t stride, int64_t scale) AOEXT_INLINE {
    F32 part[kWays][M][N] = {};
    typename Loader::Unit units[N];
    for (int i = 0; i < N; ++i) units[i] = loader.unit(from + i * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      typename Loader::Vector wk[N];
      for (int i = 0; i < N; ++i) wk[i] = loader.vector(units[i], v);
      for (int m = 0; m < M; ++m) {
        const typename Loader::Operand* const xk = x + m * x_stride + k + v * (kUnit / kVectors);
        for (int i = 0; i < N; ++i) part[v % kWays][m][i] = Loader::multiply_add(part[v % kWays][m][i], wk[i], xk);
      }
    }
    for (int i = 0; i < N; ++i) {
      F32 s;
      if constexpr (kGroups == 1)
        s = broadcast(scale_rows[i][scale]);
      else
        s = spread<kGroups>(scale_rows[i] + scale);
      for (int m = 0; m < M; ++m) sums[m][i] += s * (kWays == 1 ? part[0][m][i] : part[0][m][i] + part[kWays - 1][m][i]);
    }
  };
  ScaleCursor<kUnit, kGroups> scales(w.group_size, begin);
  const char* const first = w.codes + begin * kBytes / kUnit;
  const int64_t bytes = n * kBytes / kUnit;
  int64_t k = 0, at = 0;
  for (; k + kUnit <= n; k += kUnit, at += kBytes) {
    for (int i = 0; i < N; ++i) {
      if constexpr (sizeof(typename Loader::Operand) == sizeof(float))
        fetch_weights_to_convert(next + i * bytes + at);
      else
        fetch_weights(next + i * bytes + at);
    }
    add(k, first + at, w.row_bytes, scales.at());
    scales.advance();
  }
  if (k < n) {
    char rest[N][kBytes] = {};
    for (int i = 0; i < N; ++i) memcpy(rest[i], first + i * w.row_bytes + at, static_cast<size_t>(bytes - at));
    add(k, rest[0], kBytes, scales.at());
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i) acc[m][i] += sum<float>(sums[m][i]);
}

template <int kGroups, class Loader>
void dot_units_of(const Loader& loader, const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                  float (*acc)[kPanel]) {
  using Operand = typename Loader::Operand;
  constexpr int kRowsOfW = 2;
  const Operand* const rows_of_x = static_cast<const Operand*>(x);
  each_piece<kRowsOfW>(M, N, K, sizeof(Operand), acc,
                       [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
                         micro_kernel_units<Loader, kGroups, decltype(inputs)::count, decltype(rows)::count>(
                             loader, rows_of_x + m * x_stride + begin, x_stride, w.from(i), begin, n, w.codes + w.bytes(next),
                             reinterpret_cast<float (*)[kPanel]>(&acc[m][i]));
                       });
}

template <class Loader>
inline void dot_units(const Loader& loader, const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N,
                      int64_t K, float (*acc)[kPanel]) {
  constexpr int64_t kUnit = Loader::kUnit, kShortest = 16;
  const auto has = [&](int64_t groups) { return w.group_size < K && groups * w.group_size == kUnit; };
  if constexpr (kUnit >= 8 * kShortest)
    if (has(8)) return dot_units_of<8>(loader, x, x_stride, M, w, N, K, acc);
  if constexpr (kUnit >= 4 * kShortest)
    if (has(4)) return dot_units_of<4>(loader, x, x_stride, M, w, N, K, acc);
  if (has(2)) return dot_units_of<2>(loader, x, x_stride, M, w, N, K, acc);
  dot_units_of<1>(loader, x, x_stride, M, w, N, K, acc);
}

struct Lut4AsFloats {
  using Operand = float;
  using Unit = U32;
  using Vector = F32;
  static constexpr int kVectors = 8, kUnit = kVectors * kFloats, kBytes = sizeof(U32);
  Table table;

  Unit unit(const char* from) const { return load<U32>(from); }
  Vector vector(const Unit& words, int i) const { return look_up(table, words >> (4 * i)); }
  static F32 multiply_add(F32 sums, Vector w, const Operand* x) { return sums + load<F32>(x) * w; }
};

void dot_lut4(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K, float (*acc)[kPanel]) {
  dot_units(Lut4AsFloats{Table(w.table)}, x, x_stride, M, w, N, K, acc);
}

void pack_x_lut4(Element from, const void* row, int64_t n, void* out) {
  constexpr int64_t kUnit = Lut4AsFloats::kUnit;
  const int64_t bytes = from == Element::fp32 ? 4 : 2;
  float* const to = static_cast<float*>(out);
  for (int64_t begin = 0; begin < n; begin += kUnit) {
    float values[kUnit] = {};
    to_float(from, static_cast<const char*>(row) + begin * bytes, values, n - begin < kUnit ? n - begin : kUnit);
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t lane = 0; lane < kFloats; ++lane) to[begin + i * kFloats + lane] = values[8 * lane + i];
  }
}

constexpr GemvBlockwise kGemvLut4F32{.operand_bytes = sizeof(float), .pack_x = pack_x_lut4, .dot = dot_lut4};

// ---- 8-bit values as floats --------------------------------------------------------------------------------------------

// N rows of w by M of x, with a scale for each kScaled elements of a line, or for all of it.
template <class Loader, int M, int N, int kScaled>
inline void micro_kernel_8bit_blockwise(const float* x, int64_t x_stride, const BlockwiseRows& w, int64_t K,
                                        float (*acc)[kPanel]) {
  constexpr int64_t kStep = Loader::kVectors * kFloats;
  constexpr int kVectorsOfScale = kScaled / kFloats;
  F32 sums[M][N] = {};
  typename Loader::Nan seen[N];
  const float* scale_rows[N];
  for (int n = 0; n < N; ++n) scale_rows[n] = w.scale_rows[n];
  ScaleCursor<kLine, kLine / kScaled> scales(w.group_size, 0);
  const auto add_line = [&](int64_t k, const char* from, int64_t stride) {
    for (int n = 0; n < N; ++n) seen[n].see(from + n * stride, kLine);
    F32 part[M][N] = {};
#pragma GCC unroll 16
    for (int step = 0; step < kLine / kStep; ++step) {
      F32 wk[N][Loader::kVectors];
      for (int n = 0; n < N; ++n) Loader::load(from + n * stride + step * kStep, wk[n]);
#pragma GCC unroll 2
      for (int i = 0; i < Loader::kVectors; ++i) {
        const int after = step * Loader::kVectors + i + 1;  // vectors
        for (int m = 0; m < M; ++m) {
          const F32 xk = load<F32>(x + m * x_stride + k + (after - 1) * kFloats);
          for (int n = 0; n < N; ++n) part[m][n] += xk * wk[n][i];
        }
        if (after % kVectorsOfScale != 0) continue;
        for (int n = 0; n < N; ++n) {
          const F32 s = broadcast(scale_rows[n][scales.at() + after / kVectorsOfScale - 1]);
          for (int m = 0; m < M; ++m) {
            sums[m][n] += s * part[m][n];
            part[m][n] = F32{};
          }
        }
      }
    }
    scales.advance();
  };
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) fetch_8bit_weights<Loader>(w.row(N + n) + k);  // the next rows
    add_line(k, w.codes + k, w.row_bytes);
  }
  if (k < K) {
    char rest[N][kLine] = {};
    for (int n = 0; n < N; ++n) memcpy(rest[n], w.row(n) + k, static_cast<size_t>(K - k));
    add_line(k, rest[0], kLine);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = seen[n].or_nan(sum<float>(sums[m][n]) * Loader::kFactor);
}

template <class Loader, int kScaled>
void macro_kernel_8bit_blockwise(const float* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                                 float (*acc)[kPanel]) {
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count, kTogether = kCount > 2 ? 2 : kNR;  // parts and sums stay in registers
    const auto take = [&](auto together, int64_t n) {
      micro_kernel_8bit_blockwise<Loader, kCount, decltype(together)::count, kScaled>(
          x + m * x_stride, x_stride, w.from(n), K, reinterpret_cast<float (*)[kPanel]>(&acc[m][n]));
    };
    int64_t n = 0;
    for (; n + kTogether <= N; n += kTogether) take(Rows<kTogether>(), n);
    for (; n < N; ++n) take(Rows<1>(), n);
  });
}

void dot_8bit_blockwise(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                        float (*acc)[kPanel]) {
  with_8bit_type(w.type, [&](auto of) {
    using Loader = Weights8Bit<decltype(of)::type>;
    const float* const rows = static_cast<const float*>(x);
    if (w.group_size == 16) return macro_kernel_8bit_blockwise<Loader, 16>(rows, x_stride, M, w, N, K, acc);
    if (w.group_size == 32) return macro_kernel_8bit_blockwise<Loader, 32>(rows, x_stride, M, w, N, K, acc);
    macro_kernel_8bit_blockwise<Loader, kLine>(rows, x_stride, M, w, N, K, acc);
  });
}

constexpr GemvBlockwise kGemvBlockwiseF32{.operand_bytes = sizeof(float), .pack_x = pack_x_f32, .dot = dot_8bit_blockwise};

}  // namespace
}  // namespace aoext::cpu
