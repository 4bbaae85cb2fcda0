// int4 by rows of x as two int8 limbs (int8_limbs.inc.h), with AMX.
//
// Up to 8 rows of x, a packed panel, are the 16 columns of a tile: a column is a limb of a row of x. Where 128 weights, a unit,
// are of several groups, it is of one of these alone, zero for the others' weights, and a panel has fewer rows. tdpbssd takes 64
// bytes of 16 rows of w, the unit's even k's or its odd ones', each nibble as the upper half of a byte, which is 16 times its
// value. So a row of w has 16 sums, a column each, which meet their scales of x and w. A unit of a row of w is 6 instructions to
// unpack and to store, and 5 for the sums of each panel of x.
#pragma once

#include "cpu/kernels/gemm_amx.inc.h"
#include "cpu/kernels/int8_limbs.inc.h"
#include "cpu/kernels/unsigned_nibbles.inc.h"

namespace aoext::cpu {
namespace {

// A loader: the even and the odd nibbles of words as 16 times what they stand for.
struct UpperNibbles {
  static void load(U32 words, U32* even, U32* odd) {
    *even = words << 4 & 0xf0f0f0f0u;
    *odd = words & 0xf0f0f0f0u;
  }
};

constexpr int64_t kTileBytes = kTileSide * kTileRowBytes;
constexpr int64_t kUnitBytes = 2 * kTileBytes + kTileRowBytes;  // of x: even, odd, scales
constexpr int64_t kUnits = 2;                                   // of a row of w at once
constexpr int64_t kMostXPanels = 8;                             // of x

inline int groups_of_unit(int64_t group_size) { return group_size < kLimbUnit ? static_cast<int>(kLimbUnit / group_size) : 1; }
inline int64_t rows_of_x_panel(int64_t group_size) { return kTileSide / 2 / groups_of_unit(group_size); }
inline int64_t units_of(int64_t K) { return (K + kLimbUnit - 1) / kLimbUnit; }

int64_t packed_limb_bytes(int64_t M, int64_t K, int64_t group_size) {
  const int64_t rows = rows_of_x_panel(group_size);
  return (M + rows - 1) / rows * units_of(K) * kUnitBytes;
}

// Column (2 j + limb) · rows + r of a unit is group j of row r of a panel; panels lie one after another.
void pack_limbs(const int8_t* x, int64_t x_stride, const float* x_scales, int64_t M, int64_t K, int64_t group_size, char* out) {
  const int64_t x_panel = rows_of_x_panel(group_size), groups = K / group_size, units = units_of(K);
  const int in_unit = groups_of_unit(group_size), words = kTileSide / in_unit;
  memset(out, 0, static_cast<size_t>(packed_limb_bytes(M, K, group_size)));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t u = 0; u < units; ++u) {
      char* const unit = out + (m / x_panel * units + u) * kUnitBytes;
      const int8_t* const from = x + m * x_stride + 2 * u * kLimbUnit;
      for (int j = 0; j < in_unit; ++j) {
        const int64_t g = u * kLimbUnit / group_size + j;
        if (g >= groups) break;
        for (int limb = 0; limb < 2; ++limb) {
          const int64_t column = 4 * ((2 * j + limb) * x_panel + m % x_panel);
          for (int odd = 0; odd < 2; ++odd)
            for (int word = j * words; word < (j + 1) * words; ++word)
              memcpy(unit + odd * kTileBytes + word * kTileRowBytes + column,
                     from + limb * kLimbUnit + odd * kLimbBytes + 4 * word, 4);
          const float scale = x_scales[m * groups + g] * (limb == 0 ? 16.0f : 0.0625f);
          memcpy(unit + 2 * kTileBytes + column, &scale, 4);
        }
      }
    }
}

// Lane 4 i + n is row n's scale of the group that lane is of: kGroups to a vector, kPanel floats from one to the next.
template <int kGroups>
inline F32 scales_of_fours(const float* scale) {
  const auto of = [&](int i) { return load<__m128>(scale + i * kGroups / 4 * kPanel); };
  __m512 v = _mm512_castps128_ps512(of(0));
  v = _mm512_maskz_insertf32x4(0xffff, v, of(1), 1);
  v = _mm512_maskz_insertf32x4(0xffff, v, of(2), 2);
  return (F32)_mm512_maskz_insertf32x4(0xffff, v, of(3), 3);
}

// Adds `count` units of N rows of w, unpacked, by one panel of x, from the first of these units on, to sums. Scales of w are
// those of the units' groups.
template <int kGroups>
inline void add_units(const char* w, int64_t count, const char* x, const float (*scales)[kPanel], int N, F32* sums) {
  alignas(64) I32 products[kUnits][kPanel];
  for (int64_t u = 0; u < count; ++u) {
    const char *const rows = w + u * 4 * kTileBytes, *const unit = x + u * kUnitBytes;
    _tile_loadd(4, rows, kTileRowBytes);
    _tile_loadd(5, rows + kTileBytes, kTileRowBytes);
    _tile_loadd(6, rows + 2 * kTileBytes, kTileRowBytes);
    _tile_loadd(7, rows + 3 * kTileBytes, kTileRowBytes);
    _tile_loadd(2, unit, kTileRowBytes);
    _tile_loadd(3, unit + kTileBytes, kTileRowBytes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_dpbssd(0, 4, 2);
    _tile_dpbssd(1, 6, 2);
    _tile_dpbssd(0, 5, 3);
    _tile_dpbssd(1, 7, 3);
    _tile_stored(0, products[u], kTileRowBytes);
    _tile_stored(1, products[u] + kTileSide, kTileRowBytes);
  }
  for (int n = 0; n < N; n += 4) {
    F32 row_sums[4];
    for (int i = 0; i < 4; ++i) row_sums[i] = sums[n + i];
    for (int64_t u = 0; u < count; ++u) {
      const F32 x_scale = load<F32>(x + u * kUnitBytes + 2 * kTileBytes);
      const __m512 s = (__m512)scales_of_fours<kGroups>(&scales[u * kGroups][n]);
      const auto add = [&](int i, __m512 scale) {
        row_sums[i] += (F32)scale * (x_scale * __builtin_convertvector(products[u][n + i], F32));
      };
      add(0, _mm512_maskz_shuffle_ps(0xffff, s, s, 0x00));
      add(1, _mm512_maskz_shuffle_ps(0xffff, s, s, 0x55));
      add(2, _mm512_maskz_shuffle_ps(0xffff, s, s, 0xaa));
      add(3, _mm512_maskz_shuffle_ps(0xffff, s, s, 0xff));
    }
    for (int i = 0; i < 4; ++i) sums[n + i] = row_sums[i];
  }
}

// Scales and zero points of group g as floats; the next panel's are fetched, from the same pages.
inline void stage_group(const Int4Panel& w, int64_t g, float* scales, float* zero_points) {
  const char *const scale = w.scale + g * w.stride, *const zero_point = w.zero_point + g * w.stride;
  const int64_t line = kPanel * w.element_bytes;
  for (int64_t i = 0; i < line; i += kLine) {
    __builtin_prefetch(scale + line + i, 0, 2);
    __builtin_prefetch(zero_point + line + i, 0, 2);
  }
  for (int n = 0; n < kPanel; n += kFloats) {
    store(scales + n, floats_at(w.element, scale + n * w.element_bytes));
    store(zero_points + n, floats_at(w.element, zero_point + n * w.element_bytes));
  }
}

// acc[m][n] += zero_point[n] · Σ of row m's group.
inline void add_zero_points(const float* zero_points, const float* x_sums, int64_t stride, int64_t M, float (*acc)[kPanel]) {
  F32 zero_point[kPanel / kFloats];
  memcpy(zero_point, zero_points, sizeof zero_point);
  for (int64_t m = 0; m < M; ++m)
    for (int i = 0; i < kPanel / kFloats; ++i) {
      float* const to = acc[m] + i * kFloats;
      store(to, load<F32>(to) + zero_point[i] * x_sums[m * stride]);
    }
}

// M rows of x, at most kMostXPanels panels, by up to kPanel rows of w.
template <class Loader, int kGroups>
inline void micro_kernel_packed(const char* x, const float* x_sums, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
                                float (*acc)[kPanel]) {
  constexpr int64_t kXPanel = kTileSide / 2 / kGroups;
  const int64_t units = units_of(K), groups = K / w.group_size, x_panels = (M + kXPanel - 1) / kXPanel, bytes = K / 2;
  F32 sums[kMostXPanels][kPanel];
  memset(sums, 0, static_cast<size_t>(x_panels) * sizeof sums[0]);
  alignas(64) char rows[kUnits * 4 * kTileBytes];
  _tile_loadconfig(&kTileConfig);
  const int64_t parts = w.group_size * kGroups / kLimbUnit;  // of a group
  int64_t g = 0, part = 0;                                   // the next
  for (int64_t u = 0; u < units; u += kUnits) {
    const int64_t count = units - u < kUnits ? units - u : kUnits;
    // A unit's part of a group; what does not exist has scales of zero.
    constexpr int64_t kParts = kUnits * kGroups;
    alignas(64) float scales[kParts][kPanel], zero_points[kParts][kPanel];
    for (int64_t i = 0; i < kParts; ++i) {
      if (g == groups) {
        memset(scales[i], 0, sizeof scales[i]);
        continue;
      }
      stage_group(w, g, scales[i], zero_points[i]);
      if (part == 0) add_zero_points(zero_points[i], x_sums + g, groups, M, acc);
      if (++part == parts) {
        part = 0;
        ++g;
      }
    }
    for (int64_t n = 0; n < N; ++n) {
      const uint8_t* const row = w.packed + n * bytes + u * kLimbBytes;
      // What is next of this row, or of the next panel's.
      const uint8_t* const ahead = u + kUnits < units ? row + kUnits * kLimbBytes : row + kPanel * bytes - u * kLimbBytes;
      char* const to = rows + n / kTileSide * 2 * kTileBytes + n % kTileSide * kTileRowBytes;
      for (int64_t i = 0; i < count; ++i) {
        __builtin_prefetch(ahead + i * kLimbBytes, 0, 2);
        const int64_t left = bytes - (u + i) * kLimbBytes;
        const U32 words = left >= kLimbBytes
                              ? load<U32>(row + i * kLimbBytes)
                              : (U32)_mm512_maskz_loadu_epi8(~__mmask64{0} >> (kLimbBytes - left), row + i * kLimbBytes);
        U32 even, odd;
        Loader::load(words, &even, &odd);
        store(to + i * 4 * kTileBytes, even);
        store(to + i * 4 * kTileBytes + kTileBytes, odd);
      }
    }
    for (int64_t x_panel = 0; x_panel < x_panels; ++x_panel)
      add_units<kGroups>(rows, count, x + (x_panel * units + u) * kUnitBytes, scales, static_cast<int>(N), sums[x_panel]);
  }
  _tile_release();
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t column = m % kXPanel; column < kTileSide; column += kXPanel) acc[m][n] += sums[m / kXPanel][n][column];
}

template <class Loader, int kGroups>
inline void macro_kernel_packed(const char* x, const float* x_sums, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
                                float (*acc)[kPanel]) {
  constexpr int64_t kMost = kMostXPanels * kTileSide / 2 / kGroups;
  memset(acc, 0, static_cast<size_t>(M) * sizeof acc[0]);
  for (int64_t m = 0; m < M; m += kMost)
    micro_kernel_packed<Loader, kGroups>(x + m / kMost * kMostXPanels * units_of(K) * kUnitBytes, x_sums + m * (K / w.group_size),
                                         M - m < kMost ? M - m : kMost, w, N, K, acc + m);
}

void dot_packed(const char* packed_x, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
                float (*acc)[kPanel]) {
  if (groups_of_unit(w.group_size) == 2)
    return macro_kernel_packed<UpperNibbles, /*kGroups=*/2>(packed_x, of_x.sums, M, w, N, K, acc);
  macro_kernel_packed<UpperNibbles, /*kGroups=*/1>(packed_x, of_x.sums, M, w, N, K, acc);
}

constexpr GemvLimbsPacked kGemvLimbs2Packed{.limbs = kInt8Limbs<UnsignedNibbles, kTwoInt8Limbs>,
                                            .packed_bytes = packed_limb_bytes,
                                            .pack_x = pack_limbs,
                                            .dot = dot_packed};

}  // namespace
}  // namespace aoext::cpu
