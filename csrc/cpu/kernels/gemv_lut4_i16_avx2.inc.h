// Codes of 4 bits by few rows of x as integers of 15 bits: the two bytes of a table's integers are looked up for 32 codes at
// once, and vpmaddwd multiplies. 64 codes take 13 instructions, and 10 for a row of x, where floats take 40 and 8.
//
// 64 elements of x are fixed point with a scale of their own. Where one of them is too large for the others, they stay floats.
#pragma once

#include "cpu/fixed_point_table.h"
#include "cpu/kernels/gemv_blockwise.inc.h"
#include "cpu/kernels/int8_limbs.inc.h"

namespace aoext::cpu {
namespace {

// Eight products of them fit 32 bits.
constexpr int kMostI16 = 16383;

struct UnitOfX {
  static constexpr int kElements = Lut4AsFloats::kUnit;
  union {
    int16_t integers[kElements];  // the even ones of each eight, two at a time, then the odd ones
    float floats[kElements];      // in the order of Lut4AsFloats
  };
  float scale;          // of integers; else 0
  int32_t next_floats;  // of this unit and those behind it the first of floats
  char unused[56];
};
constexpr int64_t kI16OperandBytes = sizeof(UnitOfX) / UnitOfX::kElements;
static_assert(kI16OperandBytes * UnitOfX::kElements == sizeof(UnitOfX));

// Whether 64 values become integers.
inline bool pack_integers(const float* values, UnitOfX* to) {
  constexpr int64_t kUnit = UnitOfX::kElements;
  constexpr float kLowest = 1e-25f;        // below this its scale times the table's could be subnormal
  constexpr float kRounder = 12582912.0f;  // 1.5 · 2²³: its ulp is 1
  F32 absolute = {};
  U32 most = {};
  for (int64_t i = 0; i < kUnit; i += kFloats) {
    const U32 magnitude = load<U32>(values + i) & kMagnitude;
    absolute += (F32)magnitude;
    most = magnitude > most ? magnitude : most;
  }
  uint32_t largest = 0;
  for (int i = 0; i < kFloats; ++i) largest = most[i] > largest ? most[i] : largest;
  const float highest = from_bits(largest);
  const bool is_in_range = largest == 0 || (highest >= kLowest && largest < kInfinity);
  if (!is_in_range || highest * kUnit > kWidest * sum<float>(absolute)) return false;
  const float inverse = largest == 0 ? 0 : kMostI16 / highest;
  for (int64_t v = 0; v < 4; ++v)
    for (int64_t i = 0; i < 2 * kFloats; ++i) {
      const int64_t in_eight = v % 2 * 4 + i % 2 * 2 + v / 2;
      const float rounded = values[i / 2 * 8 + in_eight] * inverse + kRounder;
      to->integers[v * 2 * kFloats + i] = static_cast<int16_t>(bits(rounded) - bits(kRounder));
    }
  to->scale = highest / kMostI16;
  return true;
}

void pack_x_lut4_i16(Element from, const void* row, int64_t n, void* out) {
  constexpr int64_t kUnit = UnitOfX::kElements;
  const int64_t bytes = from == Element::fp32 ? 4 : 2, count = (n + kUnit - 1) / kUnit;
  UnitOfX* const units = static_cast<UnitOfX*>(out);
  int64_t next = count;
  for (int64_t u = count; u-- > 0; units[u].next_floats = static_cast<int32_t>(next)) {
    const int64_t begin = u * kUnit;
    float values[kUnit] = {};
    to_float(from, static_cast<const char*>(row) + begin * bytes, values, n - begin < kUnit ? n - begin : kUnit);
    if (pack_integers(values, &units[u])) continue;
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t lane = 0; lane < kFloats; ++lane) units[u].floats[i * kFloats + lane] = values[8 * lane + i];
    units[u].scale = 0;
    next = u;
  }
}

struct TableOfI16 {
  __m256i low, high;  // bytes
  float scale;
  Table floats;

  explicit TableOfI16(const FixedPointTable& from, const float* values) : scale(from.scale), floats(values) {
    uint8_t bytes[2][16];
    for (int i = 0; i < 16; ++i) {
      bytes[0][i] = static_cast<uint8_t>(from.integers[i]);
      bytes[1][i] = static_cast<uint8_t>(from.integers[i] >> 8);
    }
    low = _mm256_broadcastsi128_si256(load<__m128i>(bytes[0]));
    high = _mm256_broadcastsi128_si256(load<__m128i>(bytes[1]));
  }

  void look_up_integers(__m256i words, __m256i (&out)[4]) const {
    const __m256i halves = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i two = _mm256_shuffle_epi8(words, halves), nibble = _mm256_set1_epi8(15);
    const __m256i codes[] = {_mm256_and_si256(two, nibble), _mm256_and_si256(_mm256_srli_epi16(two, 4), nibble)};
    for (int i = 0; i < 2; ++i) {
      const __m256i lows = _mm256_shuffle_epi8(low, codes[i]), highs = _mm256_shuffle_epi8(high, codes[i]);
      out[2 * i] = _mm256_unpacklo_epi8(lows, highs);
      out[2 * i + 1] = _mm256_unpackhi_epi8(lows, highs);
    }
  }
};

// Sums of each lane's eight elements.
inline F32 multiply_integers(const __m256i (&w)[4], const int16_t* x) {
  __m256i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm256_madd_epi16(w[i], load<__m256i>(x + i * 2 * kFloats));
  return (F32)_mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), _mm256_add_epi32(sums[2], sums[3])));
}

inline F32 multiply_floats(const Table& table, U32 words, const float* x) {
  F32 sums = {};
  for (int i = 0; i < 8; ++i) sums = multiply_add(look_up(table, words >> (4 * i)), load<F32>(x + i * kFloats), sums);
  return sums;
}

// Which of a row's scales a unit has: kGroups of them, or, where that is 0, one for several units.
template <int kGroups>
class ScalesOfUnits {
 public:
  ScalesOfUnits(int64_t group_size, int64_t begin) : cursor_(group_size, begin), at_(kGroups * (begin / UnitOfX::kElements)) {}
  float one(const float* row) const { return row[kGroups == 0 ? cursor_.at() : at_]; }
  F32 all(const float* row) const {
    if constexpr (kGroups > 1)
      return spread<kGroups>(row + at_);
    else
      return broadcast(one(row));
  }
  void advance() {
    if constexpr (kGroups == 0)
      cursor_.advance();
    else
      at_ += kGroups;
  }

 private:
  ScaleCursor<UnitOfX::kElements, 1> cursor_;
  int64_t at_;
};

// n elements from `begin` on of N rows of w, of which what lies at `next` is fetched. Rows of x are x_stride units apart.
template <int kGroups, int M, int N>
inline void micro_kernel_i16(const TableOfI16& table, const UnitOfX* x, int64_t x_stride, const BlockwiseRows& w, int64_t begin,
                             int64_t n, const char* next, float (*acc)[kPanel]) {
  constexpr int64_t kUnit = UnitOfX::kElements, kBytes = sizeof(U32);
  constexpr int kWays = M * N <= 2 ? 2 : 1;  // so that no sum waits for the one before it
  F32 sums[kWays][M][N] = {};
  const TableOfI16 values = table;
  const int64_t before = begin / kUnit, count = (n + kUnit - 1) / kUnit;
  const int64_t bytes = n / 2, row_bytes = w.row_bytes, whole = bytes / kBytes;
  const char* const first = w.codes + begin / 2;
  const float* scale_rows[N];
  for (int i = 0; i < N; ++i) scale_rows[i] = w.scale_rows[i];
  ScalesOfUnits<kGroups> scales(w.group_size, begin);
  // The words of a unit, the last of which may end within it.
  const auto words_at = [&](int i, int64_t u) {
    const char* const from = first + i * row_bytes + u * kBytes;
    if (u < whole) return load<__m256i>(from);
    char rest[kBytes] = {};
    memcpy(rest, from, static_cast<size_t>(bytes - u * kBytes));
    return load<__m256i>(rest);
  };
  const auto add = [&](F32(&to)[M][N], int64_t u, const auto& words) AOEXT_INLINE {
    for (int i = 0; i < N; ++i) {
      __m256i wk[4];
      values.look_up_integers(words(i), wk);
      for (int m = 0; m < M; ++m) {
        const UnitOfX& xk = x[m * x_stride + before + u];
        F32 s;
        if constexpr (kGroups > 1)
          s = scales.all(scale_rows[i]) * xk.scale;
        else
          s = broadcast(scales.one(scale_rows[i]) * xk.scale);
        to[m][i] = multiply_add(multiply_integers(wk, xk.integers), s, to[m][i]);
      }
    }
    scales.advance();
  };
  const auto add_whole = [&](F32(&to)[M][N], int64_t u) AOEXT_INLINE {
    for (int i = 0; i < N; ++i) fetch_weights(next + i * bytes + u * kBytes);
    add(to, u, [&](int i) AOEXT_INLINE { return load<__m256i>(first + i * row_bytes + u * kBytes); });
  };
  int64_t u = 0;
  for (; u + kWays <= whole; u += kWays)
#pragma GCC unroll 2
    for (int way = 0; way < kWays; ++way) add_whole(sums[way], u + way);
  for (; u < whole; ++u) add_whole(sums[0], u);
  if (u < count) add(sums[0], u, [&](int i) { return words_at(i, u); });
  // Units of floats, which had a scale of 0.
  for (int m = 0; m < M; ++m) {
    const UnitOfX* const row = x + m * x_stride;
    for (int64_t at = row[before].next_floats; at < before + count;
         at = at + 1 < before + count ? row[at + 1].next_floats : at + 1) {
      const ScalesOfUnits<kGroups> of(w.group_size, at * kUnit);
      for (int i = 0; i < N; ++i)
        sums[0][m][i] = multiply_add(multiply_floats(values.floats, (U32)words_at(i, at - before), row[at].floats),
                                     of.all(scale_rows[i]) / values.scale, sums[0][m][i]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i)
      acc[m][i] += values.scale * sum<float>(kWays == 1 ? sums[0][m][i] : sums[0][m][i] + sums[kWays - 1][m][i]);
}

template <int kGroups>
void dot_lut4_i16_of(const TableOfI16& table, const UnitOfX* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N,
                     int64_t K, float (*acc)[kPanel]) {
  each_piece<2>(M, N, K, sizeof(float), acc,
                [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
                  micro_kernel_i16<kGroups, decltype(inputs)::count, decltype(rows)::count>(
                      table, x + m * x_stride, x_stride, w.from(i), begin, n, w.codes + w.bytes(next),
                      reinterpret_cast<float (*)[kPanel]>(&acc[m][i]));
                });
}

void dot_lut4_i16(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                  float (*acc)[kPanel]) {
  const TableOfI16 table(in_fixed_point(w.table), w.table);
  const UnitOfX* const units = static_cast<const UnitOfX*>(x);
  const int64_t stride = x_stride / UnitOfX::kElements;
  const auto has = [&](int64_t groups) { return w.group_size < K && groups * w.group_size == UnitOfX::kElements; };
  if (has(4)) return dot_lut4_i16_of<4>(table, units, stride, M, w, N, K, acc);
  if (has(2)) return dot_lut4_i16_of<2>(table, units, stride, M, w, N, K, acc);
  if (has(1)) return dot_lut4_i16_of<1>(table, units, stride, M, w, N, K, acc);
  dot_lut4_i16_of<0>(table, units, stride, M, w, N, K, acc);
}

constexpr GemvBlockwise kGemvLut4I16{.operand_bytes = kI16OperandBytes, .pack_x = pack_x_lut4_i16, .dot = dot_lut4_i16};

}  // namespace
}  // namespace aoext::cpu
