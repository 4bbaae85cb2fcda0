// Weights whose codes lie in planes by few rows of x in int8: of int8 itself, or in limbs (int8_limbs.inc.h).
//
// A piece of a row of w becomes bytes and floats in the first cache, by its format's loaders; what multiplies these knows no
// format:
//
//   y[m][n] = Σ over segments of (scale · x_scale[m]) · Σ u x + beside,
//
// u the codes, unsigned where the format's are not signed themselves. What zero points add, or the middle takes off, goes by sums
// of x over segments. A row passes by all of K, so that w is one stream in the order in which it lies.
#pragma once

#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/planes.inc.h"

namespace aoext::cpu {
namespace {

// sums + the products of bytes of each lane, u below 128 or signed: products_of_codes_<it>.inc.h.
template <bool kSigned>
I32 add_products(I32 sums, U32 codes, U32 x);

constexpr int64_t kPieceOfRow = 2048;  // codes; whole blocks and segments
constexpr int64_t kRowsBeside = 4;     // of w, whose sums are added up together
constexpr int64_t kShortestSegment = 16;
constexpr int64_t kMostSegments = kPieceOfRow / kShortestSegment + kScalesBeyond;

// A limb of x in the order of its elements. Its sums are taken as they are.
struct InOrder {
  static constexpr bool kInOrder = true;
  static constexpr int kOffset = -1;
};

// A piece of a row of w, and of x what it meets.
struct PieceOfRow {
  const char* codes;
  const float *scales, *beside;
  int64_t n, segments;
};
struct PieceOfX {
  const int8_t* x;
  const float *scales, *sums;  // of segments
  int64_t stride, numbers_stride;
};

// kRows rows of x, each summed up in the same order whatever kRows is. A step is kVectors vectors of a segment, or one, of
// kGroups segments.
template <int kLimbs, bool kSigned, int kVectors, int kGroups, int kRows>
inline void multiply_piece(const PieceOfRow& w, const PieceOfX& of_x, F32 (*sums)[kRowsBeside]) {
  constexpr int kTurns = 2;  // so that no sum waits for the one before it
  constexpr int64_t kStep = kVectors * kLimbBytes;
  float scales[kRows][kMostSegments];
  F32 to[kRows][kTurns] = {};
  for (int m = 0; m < kRows; ++m)
    for (int64_t g = 0; g < w.segments; g += kFloats) {
      const int64_t of_row = m * of_x.numbers_stride + g;
      const F32 s = load<F32>(w.scales + g);
      store(scales[m] + g, s * load<F32>(of_x.scales + of_row));
      if (w.beside != nullptr) to[m][0] = multiply_add(load<F32>(w.beside + g), load<F32>(of_x.sums + of_row), to[m][0]);
    }
  const auto step = [&](int64_t k, int64_t g, int turn) AOEXT_INLINE {
    U32 u[kVectors];
    for (int v = 0; v < kVectors; ++v) u[v] = load<U32>(w.codes + k + v * kLimbBytes);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const int8_t* const x = of_x.x + m * of_x.stride + kLimbs * k;
      I32 total = {};
#pragma GCC unroll 3
      for (int limb = 0; limb < kLimbs; ++limb) {
        if (limb > 0) total <<= 8;
        for (int v = 0; v < kVectors; ++v)
          total = add_products<kSigned>(total, u[v], load<U32>(x + (v * kLimbs + limb) * kLimbBytes));
      }
      F32 s;
      if constexpr (kGroups == 1)
        s = broadcast(scales[m][g]);
      else
        s = spread<kGroups>(scales[m] + g);
      to[m][turn] = multiply_add(s, __builtin_convertvector(total, F32), to[m][turn]);
    }
  };
  int64_t k = 0, g = 0;
  for (; k + kTurns * kStep <= w.n; k += kTurns * kStep, g += kTurns * kGroups) {
#pragma GCC unroll 4
    for (int turn = 0; turn < kTurns; ++turn) step(k + turn * kStep, g + turn * kGroups, turn);
  }
  for (; k < w.n; k += kStep, g += kGroups) step(k, g, 0);
  for (int m = 0; m < kRows; ++m)
    for (int turn = 0; turn < kTurns; ++turn) sums[m][0] += to[m][turn];
}

using MultiplyPiece = void (*)(const PieceOfRow& w, const PieceOfX& of_x, int64_t M, F32 (*sums)[kRowsBeside]);

template <int kLimbs, bool kSigned, int kVectors, int kGroups>
void multiply_rows(const PieceOfRow& w, const PieceOfX& of_x, int64_t M, F32 (*sums)[kRowsBeside]) {
  each_rows<4>(M, [&](auto count, int64_t m) {
    const PieceOfX from{of_x.x + m * of_x.stride, of_x.scales + m * of_x.numbers_stride, of_x.sums + m * of_x.numbers_stride,
                        of_x.stride, of_x.numbers_stride};
    multiply_piece<kLimbs, kSigned, kVectors, kGroups, decltype(count)::count>(w, from, sums + m);
  });
}

// Segments are of 16, 32, 64 or 128 codes. Sums in three limbs hold for one vector.
template <int kLimbs, bool kSigned>
inline MultiplyPiece multiplier(int64_t segment) {
  const int64_t groups = kLimbBytes / segment;
  if constexpr (kLimbBytes >= 64)
    if (groups == 4) return multiply_rows<kLimbs, kSigned, 1, 4>;
  if constexpr (kLimbBytes >= 32)
    if (groups == 2) return multiply_rows<kLimbs, kSigned, 1, 2>;
  if constexpr (kLimbs < kThreeInt8Limbs) {
    if (segment == 2 * kLimbBytes) return multiply_rows<kLimbs, kSigned, 2, 1>;
    if (segment == 4 * kLimbBytes) return multiply_rows<kLimbs, kSigned, 4, 1>;
  }
  return multiply_rows<kLimbs, kSigned, 1, 1>;
}

// Numbers of groups as those of their segments, from the last on, and zeros behind them.
inline void spread_over_segments(float* numbers, int64_t segments, int64_t of_group) {
  if (of_group > 1)
    for (int64_t i = segments - 1; i >= 0; --i) numbers[i] = numbers[i / of_group];
  store(numbers + segments, F32{});
}

template <int kLimbs>
void dot_planes(const PlanesPanel& w, int64_t N, int64_t K, const RowsByPlanes& x, int64_t M, float (*acc)[kPanel]) {
  constexpr int64_t kMostRows = 8;
  const Layout of = layout_of(w.code);
  const bool is_signed = of.code.is_signed || of.looks_up, inside = w.scale_rows == nullptr;
  const bool has_middle = of.code.middle != 0 && !is_signed;
  const int64_t segment = w.segment, of_group = inside ? of.group / segment : 1;
  const MultiplyPiece multiply = is_signed ? multiplier<kLimbs, true>(segment) : multiplier<kLimbs, false>(segment);
  const UnpackCodes unpack = unpacker</*kLessMiddle=*/false>(w.code);
  const NumbersOfBlocks numbers = numbers_of(w.code);
  alignas(kLine) char codes[kPieceOfRow + kLimbBytes];
  float scales[kMostSegments], zero_points[kMostSegments];
  for (int64_t begin = 0; begin < M; begin += kMostRows) {
    const int64_t rows = M - begin < kMostRows ? M - begin : kMostRows;
    for (int64_t n = 0; n < N; n += kRowsBeside) {
      F32 sums[kMostRows][kRowsBeside] = {};
      for (int64_t r = 0; r < kRowsBeside && n + r < N; ++r)
        for (int64_t k = 0; k < K; k += kPieceOfRow) {
          const int64_t count = K - k < kPieceOfRow ? K - k : kPieceOfRow, segments = count / segment, blocks = count / of.values;
          const uint8_t* const from = w.blocks + (n + r) * w.row_bytes + k / of.values * of.bytes;
          unpack(from, blocks, codes);
          store(codes + count, U32{});
          if (inside) {
            numbers(from, blocks, w.by, scales, zero_points);
          } else {
            const int64_t at = (n + r) * w.scales_of_row + k / segment;
            memcpy(scales, w.scale_rows + at, static_cast<size_t>(segments) * sizeof(float));
            memcpy(zero_points, w.zero_rows + at, static_cast<size_t>(segments) * sizeof(float));
          }
          spread_over_segments(scales, segments, of_group);
          if (w.has_zero_points) spread_over_segments(zero_points, segments, of_group);
          const float* const beside = w.has_zero_points ? zero_points : has_middle ? scales : nullptr;
          const int64_t numbers_at = begin * x.numbers_stride + k / segment;
          const PieceOfX of_x{x.x + begin * x.stride + kLimbs * k, x.scales + numbers_at, x.sums + numbers_at, x.stride,
                              x.numbers_stride};
          multiply({codes, scales, beside, count, segments}, of_x, rows, reinterpret_cast<F32(*)[kRowsBeside]>(&sums[0][r]));
        }
      for (int64_t m = 0; m < rows; ++m) {
        float four[kRowsBeside] = {};
        add_sums(sums[m], four);
        for (int64_t r = 0; r < kRowsBeside && n + r < N; ++r) acc[begin + m][n + r] = four[r] * x.scales_of_rows[begin + m];
      }
    }
  }
}

template <int kLimbs>
constexpr GemvPlanes kGemvPlanes{.limbs = {.count = kLimbs, .split = split_limbs<InOrder, kLimbs>},
                                 .vector = kLimbBytes,
                                 .longest_segment = kLimbs == kThreeInt8Limbs ? kLimbBytes
                                                    : 4 * kLimbBytes < kPad   ? 4 * kLimbBytes
                                                                              : kPad,
                                 .dot = dot_planes<kLimbs>};
template <>
constexpr GemvPlanes kGemvPlanes<kOneInt8Limb>{.limbs = {.count = kOneInt8Limb, .split = nullptr},
                                               .vector = kLimbBytes,
                                               .longest_segment = 4 * kLimbBytes < kPad ? 4 * kLimbBytes : kPad,
                                               .dot = dot_planes<kOneInt8Limb>};

}  // namespace
}  // namespace aoext::cpu
