// gemm with lanes along K: acc[m][n] += Σ x[m][k] · w[n][k], of floats, and of 8-bit integers where gemm_i8_*.inc.h says so.
//
// Rows of both operands lie as they are multiplied, so nothing is transposed. The micro-kernel takes MR rows of x by NR = 4
// output channels: a step loads NR + MR vectors for NR · MR multiply-adds, which leaves the loads idle half of the time; its sums
// are added up over their lanes once a block, 17 instructions for four. A packed block of w is NC = 16 output channels by KC
// operands, 16 to 24 KB, which stay in the first cache while all rows of x go past.
//
// AVX-512 multiplies bfloat16 and int8 otherwise: gemm_avx512.inc.h, gemm_amx.inc.h.
//
// A format comes in as a loader, which writes n operands of a row and zeros up to a multiple of kPad:
//
//   using Operand
//   static void load(Element from, const void* source, int64_t n, Operand* out)             x and 8-bit weights
//   static void load(const Int4Row& row, int64_t begin, int64_t n, Operand* out)            int4, from element `begin` on
//
// A new format (8 bits with a scale a block, codes of a table of 16 values) is one more loader, with the struct that says how its
// rows lie in Int4Row's place, and a table that packs with it.
#pragma once

#include "cpu/kernels/int4.inc.h"

namespace aoext::cpu {
namespace {

static_assert(kNR == 4, "four sums are added up at once");

// ---- micro-kernel, macro-kernel ------------------------------------------------------------------------

struct MultiplyF32 {
  static constexpr int kMR = kRegisters >= 32 ? 4 : 3;  // what registers hold
  using Operand = float;
  using Vector = F32;
  using Sums = F32;
  using Sum = float;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + w * x; }
  static void add(const Sums (&sums)[kNR], float* acc) { add_sums(sums, acc); }
};

// kRows rows of x, at most Multiply::kMR, by kNR output channels over K <= kKC.
template <class Multiply, int kRows, int64_t kKC>
inline void micro_kernel(const typename Multiply::Operand* w, const typename Multiply::Operand* x, int64_t K,
                         typename Multiply::Sum* acc) {
  using Vector = typename Multiply::Vector;
  constexpr int64_t kStep = sizeof(Vector) / sizeof(typename Multiply::Operand);
  static_assert(kPad % kStep == 0, "padded rows are whole vectors");
  typename Multiply::Sums sums[kRows][kNR] = {};
  for (int64_t k = 0; k < K; k += kStep) {
    Vector xk[kRows];
    for (int m = 0; m < kRows; ++m) xk[m] = load<Vector>(x + m * kKC + k);
    for (int n = 0; n < kNR; ++n) {
      const Vector wk = load<Vector>(w + n * kKC + k);
      for (int m = 0; m < kRows; ++m) sums[m][n] = Multiply::multiply_add(sums[m][n], wk, xk[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) Multiply::add(sums[m], acc + m * kPanel);
}

template <class Multiply, int64_t kKC>
void macro_kernel(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  using Operand = typename Multiply::Operand;
  const Operand *const block = static_cast<const Operand*>(w), *const rows = static_cast<const Operand*>(x);
  typename Multiply::Sum* const sums = static_cast<typename Multiply::Sum*>(acc);
  each_rows<Multiply::kMR>(M, [&](auto count, int64_t m) {
    constexpr int kRows = decltype(count)::count;
    for (int n = 0; n < N; n += kNR)
      micro_kernel<Multiply, kRows, kKC>(block + n * kKC, rows + m * kKC, K, sums + m * kPanel + n);
  });
}

inline void add_group_terms(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc) {
  constexpr int kVectors = kPanelVectors;
  each_rows<kFewRows>(M, [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    float* const to = static_cast<float*>(acc) + m * kPanel;
    F32 sums[kCount][kVectors];
    memcpy(sums, to, sizeof sums);
    for (int64_t g = 0; g < groups; ++g)
      for (int i = 0; i < kVectors; ++i) {
        const F32 term = load<F32>(terms + g * kPanel + i * kFloats);
        for (int r = 0; r < kCount; ++r) sums[r][i] += term * x_sums[g * x_stride + m + r];
      }
    memcpy(to, sums, sizeof sums);
  });
}

inline void subtract_group_terms(const float* x_sums, const float* terms, int64_t groups, float* row) {
  // Groups in turn, so that enough sums are under way to hide how long each waits for its last term.
  constexpr int kTurns = kPanelVectors < 8 ? 8 / kPanelVectors : 1;
  F32 sums[kTurns][kPanelVectors] = {};
  const auto add = [&](int turn, int64_t g) {
    for (int i = 0; i < kPanelVectors; ++i) sums[turn][i] += load<F32>(terms + g * kPanel + i * kFloats) * x_sums[g];
  };
  int64_t g = 0;
  for (; g + kTurns <= groups; g += kTurns)
    for (int turn = 0; turn < kTurns; ++turn) add(turn, g + turn);
  for (; g < groups; ++g) add(0, g);
  for (int i = 0; i < kPanelVectors; ++i) {
    F32 all = sums[0][i];
    for (int turn = 1; turn < kTurns; ++turn) all += sums[turn][i];
    store(row + i * kFloats, load<F32>(row + i * kFloats) - all);
  }
}

// ---- words of rows ---------------------------------------------------------------------------------------

// As many bytes of each of kFloats rows as a vector has, as kFloats vectors of a word of each.
inline void load_words(const char* const (&rows)[kFloats], int64_t at, U32 (&words)[kFloats]) {
  for (int i = 0; i < kFloats; ++i) words[i] = load<U32>(rows[i] + at);
  transpose_words(words);
}

// ---- loaders -------------------------------------------------------------------------------------------

template <class Operand>
inline void pad_with_zeros(Operand* out, int64_t n) {
  const int64_t padded = (n + kPad - 1) / kPad * kPad;
  memset(static_cast<void*>(out + n), 0, static_cast<size_t>(padded - n) * sizeof(Operand));
}

struct RowsAsF32 {
  using Operand = float;
  static void load(Element from, const void* source, int64_t n, float* out) {
    to_float(from, source, out, n);
    pad_with_zeros(out, n);
  }
};

struct RowsAsBf16 {
  using Operand = uint16_t;
  static void load(Element from, const void* source, int64_t n, uint16_t* out) {
    to_bf16(from, source, out, n);
    pad_with_zeros(out, n);
  }
};

struct Int4AsF32 {
  using Operand = float;
  static void load(const Int4Row& row, int64_t begin, int64_t n, float* out) {
    dequantize_int4(row, begin, n, Element::fp32, out);
    pad_with_zeros(out, n);
  }
};

// ---- packing -------------------------------------------------------------------------------------------

// A row of x alone: panels of MR = 1.
template <class Loader>
void pack_x_rows(Element from, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  Loader::load(from, source, n, static_cast<typename Loader::Operand*>(out));
}

// A block row by row: load(r, out), and zeros for the rows that the last micro-kernel has beyond.
template <class Operand, int64_t kKC, class Load>
inline void pack_rows(const BlockRows& rows, void* out, const Load& load) {
  Operand* const block = static_cast<Operand*>(out);
  for (int64_t r = 0; r < rows.count; ++r) {
    load(r, block + r * kKC);
    for (int64_t i = 0; i < rows.next_bytes; i += kLine) fetch_weights(rows.next + r * rows.next_stride + i);
  }
  const int64_t beyond = (rows.count + kNR - 1) / kNR * kNR - rows.count;
  memset(static_cast<void*>(block + rows.count * kKC), 0, static_cast<size_t>(beyond * kKC) * sizeof(Operand));
}

template <class Loader, int64_t kKC>
void pack_8bit_rows(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) {
  using Operand = typename Loader::Operand;
  pack_rows<Operand, kKC>(
      rows, out, [&](int64_t r, Operand* to) { Loader::load(from, static_cast<const char*>(source) + r * rows.stride, n, to); });
}

template <class Loader, int64_t kKC>
void pack_int4_rows(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  using Operand = typename Loader::Operand;
  pack_rows<Operand, kKC>(rows, out, [&](int64_t r, Operand* to) {
    Loader::load({first.packed + r * rows.stride, first.scale + r, first.zero_point + r, first.group_size}, begin, n, to);
  });
}

// ---- tables --------------------------------------------------------------------------------------------

constexpr int64_t kNC = 16;

template <int64_t kKC>
constexpr GemmShape kShapeF32{.operand_bytes = sizeof(float), .NC = kNC, .KC = kKC, .pack_x = pack_x_rows<RowsAsF32>};

template <int64_t kKC>
constexpr Gemm8Bit kGemmF32{
    .shape = kShapeF32<kKC>, .pack_w = pack_8bit_rows<RowsAsF32, kKC>, .macro_kernel = macro_kernel<MultiplyF32, kKC>};

template <int64_t kKC>
constexpr GemmInt4 kGemmInt4F32{.shape = kShapeF32<kKC>,
                                .pack_w = pack_int4_rows<Int4AsF32, kKC>,
                                .macro_kernel = macro_kernel<MultiplyF32, kKC>,
                                .add_group_terms = add_group_terms};

}  // namespace
}  // namespace aoext::cpu
