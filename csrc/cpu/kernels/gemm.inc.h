// Tiles of products: acc[m][n] += Σ x[m][k] · w[n][k] for kTileRows rows of w and a few rows of x at a time, lanes along K.
//
// Rows of both operands lie as they are multiplied ("operands"), so nothing is transposed. A step loads kTileRows + C vectors
// for kTileRows · C multiply-adds, C rows of x, which leaves the loads idle half of the time; the sums of a tile are added up
// over their lanes once a block, 17 instructions for four. Blocks of weights are 16 rows of `depth` operands, 16 to 24 KB, which
// stay in the first cache while all rows of x go past.
//
//   product   operands         a multiply-add          lanes   C
//
// Its operands are floats, and 8-bit integers where gemm_i8_*.inc.h says so. AVX-512 multiplies bfloat16 and int8 otherwise:
// gemm_avx512.inc.h, gemm_amx.inc.h.
#pragma once

#include "cpu/kernels/int4.inc.h"

namespace aoext::cpu {
namespace {

// The sums over the lanes of four vectors, added to four numbers.
static_assert(kTileRows == 4, "four sums are added up at once");

// ---- products ------------------------------------------------------------------------------------------

struct ProductF32 {
  static constexpr int kInputs = kFloats >= 16 ? 4 : 3;
  using Operand = float;
  using Vector = F32;
  using Sums = F32;
  using Sum = float;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + w * x; }
};

// ---- a tile, a block -----------------------------------------------------------------------------------

template <class P, int C, int64_t kDepth>
inline void tile(const typename P::Operand* w, const typename P::Operand* x, int64_t K, typename P::Sum* acc) {
  using Vector = typename P::Vector;
  constexpr int64_t kStep = sizeof(Vector) / sizeof(typename P::Operand);
  static_assert(kPad % kStep == 0, "padded rows are whole vectors");
  typename P::Sums sums[C][kTileRows] = {};
  for (int64_t k = 0; k < K; k += kStep) {
    Vector xk[C];
    for (int m = 0; m < C; ++m) xk[m] = load<Vector>(x + m * kDepth + k);
    for (int n = 0; n < kTileRows; ++n) {
      const Vector wk = load<Vector>(w + n * kDepth + k);
      for (int m = 0; m < C; ++m) sums[m][n] = P::multiply_add(sums[m][n], wk, xk[m]);
    }
  }
  for (int m = 0; m < C; ++m) add_sums(sums[m], acc + m * kTile);
}

template <class P, int64_t kDepth>
void multiply(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  using Operand = typename P::Operand;
  const Operand *const rows = static_cast<const Operand*>(w), *const inputs = static_cast<const Operand*>(x);
  typename P::Sum* const sums = static_cast<typename P::Sum*>(acc);
  each_rows<P::kInputs>(M, [&](auto count, int64_t m) {
    for (int n = 0; n < N; n += kTileRows)
      tile<P, decltype(count)::count, kDepth>(rows + n * kDepth, inputs + m * kDepth, K, sums + m * kTile + n);
  });
}

void add_of_groups(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc) {
  constexpr int kVectors = kTile / kFloats;
  each_rows<kFewRows>(M, [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    float* const to = static_cast<float*>(acc) + m * kTile;
    F32 sums[kCount][kVectors];
    memcpy(sums, to, sizeof sums);
    for (int64_t g = 0; g < groups; ++g)
      for (int i = 0; i < kVectors; ++i) {
        const F32 term = load<F32>(terms + g * kTile + i * kFloats);
        for (int r = 0; r < kCount; ++r) sums[r][i] += term * x_sums[g * x_stride + m + r];
      }
    memcpy(to, sums, sizeof sums);
  });
}

// ---- operands ------------------------------------------------------------------------------------------

template <class Operand>
inline void fill_up(Operand* out, int64_t n) {
  const int64_t padded = (n + kPad - 1) / kPad * kPad;
  memset(static_cast<void*>(out + n), 0, static_cast<size_t>(padded - n) * sizeof(Operand));
}

using Operands = void (*)(Element from, const void* source, int64_t n, void* out);

template <Element kTo, class Operand>
void operands(Element from, const void* source, int64_t n, void* out) {
  if constexpr (kTo == Element::bf16)
    to_bf16(from, source, out, n);
  else
    to_float(from, source, static_cast<float*>(out), n);
  fill_up(static_cast<Operand*>(out), n);
}

// A row of x alone.
template <Operands kOperands>
void inputs(Element from, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  kOperands(from, source, n, out);
}

// A block row by row: operands(row, out), and zeros for the rows that a tile has beyond.
template <class Operand, int64_t kDepth, class Row>
inline void each_row(const BlockRows& rows, void* out, const Row& operands) {
  Operand* const block = static_cast<Operand*>(out);
  for (int64_t r = 0; r < rows.count; ++r) {
    operands(r, block + r * kDepth);
    for (int64_t i = 0; i < rows.next_bytes; i += kLine) __builtin_prefetch(rows.next + r * rows.next_stride + i);
  }
  const int64_t beyond = (rows.count + kTileRows - 1) / kTileRows * kTileRows - rows.count;
  memset(static_cast<void*>(block + rows.count * kDepth), 0, static_cast<size_t>(beyond * kDepth) * sizeof(Operand));
}

template <class Operand, int64_t kDepth, Operands kOperands>
void weights(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  each_row<Operand, kDepth>(
      rows, out, [&](int64_t r, Operand* to) { kOperands(from, static_cast<const char*>(source) + r * rows.stride, n, to); });
}

using OperandsOfInt4 = void (*)(const Int4Row& row, int64_t begin, int64_t n, void* out);

template <class Operand, int64_t kDepth, OperandsOfInt4 kOperands>
void weights_int4(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  each_row<Operand, kDepth>(rows, out, [&](int64_t r, Operand* to) {
    kOperands({first.packed + r * rows.stride, first.scale + r, first.zero_point + r, first.group_size}, begin, n, to);
  });
}

template <Element kTo, class Operand>
void operands_of_int4(const Int4Row& row, int64_t begin, int64_t n, void* out) {
  dequantize_int4(row, begin, n, kTo, out);
  fill_up(static_cast<Operand*>(out), n);
}

// ---- tables --------------------------------------------------------------------------------------------

constexpr int64_t kBlockRows = 16;

template <int64_t kDepth>
constexpr Tiles kTilesF32{.operand_bytes = sizeof(float),
                          .rows = kBlockRows,
                          .depth = kDepth,
                          .inputs = inputs<operands<Element::f32, float>>,
                          .weights = weights<float, kDepth, operands<Element::f32, float>>,
                          .weights_int4 = weights_int4<float, kDepth, operands_of_int4<Element::f32, float>>,
                          .multiply = multiply<ProductF32, kDepth>,
                          .add_of_groups = add_of_groups};

}  // namespace
}  // namespace aoext::cpu
