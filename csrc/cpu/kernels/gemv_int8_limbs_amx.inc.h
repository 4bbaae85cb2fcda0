// planes
#pragma once

#include "cpu/kernels/gemm_amx.inc.h"
#include "cpu/kernels/int8_limbs.inc.h"

namespace aoext::cpu {
namespace {

// As few_rows_int4.inc.h, with up to 8 rows of x, a lot, as the 16 columns of a tile: a column is a plane of a row of x. Where
// 128 weights, a unit, are of several groups, it is of one of these alone, zero for the others' weights, and a lot has fewer
// rows. tdpbssd takes 64 bytes of 16 rows of w, the unit's even k's or its odd ones', each nibble as the upper half of a byte,
// which is 16 times its value. So a row of w has 16 sums, a column each, which meet their scales of x and w. A unit of a row of w
// is 6 instructions to unpack and to store, and 5 for the sums of each lot.

constexpr int64_t kTileBytes = kTileSide * kTileRowBytes;
constexpr int64_t kUnitBytes = 2 * kTileBytes + kTileRowBytes;  // of x: even, odd, scales
constexpr int64_t kUnits = 2;                                   // of a row of w at once
constexpr int64_t kMostLots = 8;                                // of rows of x

inline int groups_of_unit(int64_t group_size) { return group_size < kPlaneUnit ? static_cast<int>(kPlaneUnit / group_size) : 1; }
inline int64_t rows_of_lot(int64_t group_size) { return kTileSide / 2 / groups_of_unit(group_size); }
inline int64_t units_of(int64_t K) { return (K + kPlaneUnit - 1) / kPlaneUnit; }

int64_t joined_bytes(int64_t M, int64_t K, int64_t group_size) {
  const int64_t rows = rows_of_lot(group_size);
  return (M + rows - 1) / rows * units_of(K) * kUnitBytes;
}

// Column (2 j + plane) · rows + r of a unit is group j of row r of a lot; lots lie one after another.
void join_planes(const int8_t* x, int64_t x_stride, const float* x_scales, int64_t M, int64_t K, int64_t group_size, char* out) {
  const int64_t lot = rows_of_lot(group_size), groups = K / group_size, units = units_of(K);
  const int in_unit = groups_of_unit(group_size), words = kTileSide / in_unit;
  memset(out, 0, static_cast<size_t>(joined_bytes(M, K, group_size)));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t u = 0; u < units; ++u) {
      char* const unit = out + (m / lot * units + u) * kUnitBytes;
      const int8_t* const from = x + m * x_stride + 2 * u * kPlaneUnit;
      for (int j = 0; j < in_unit; ++j) {
        const int64_t g = u * kPlaneUnit / group_size + j;
        if (g >= groups) break;
        for (int plane = 0; plane < 2; ++plane) {
          const int64_t column = 4 * ((2 * j + plane) * lot + m % lot);
          for (int odd = 0; odd < 2; ++odd)
            for (int word = j * words; word < (j + 1) * words; ++word)
              memcpy(unit + odd * kTileBytes + word * kTileRowBytes + column,
                     from + plane * kPlaneUnit + odd * kPlaneBytes + 4 * word, 4);
          const float scale = x_scales[m * groups + g] * (plane == 0 ? 16.0f : 0.0625f);
          memcpy(unit + 2 * kTileBytes + column, &scale, 4);
        }
      }
    }
}

// Lane 4 i + n is row n's scale of the group that lane is of: kGroups to a vector, kTile floats from one to the next.
template <int kGroups>
inline F32 scales_of_fours(const float* scale) {
  const auto of = [&](int i) { return load<__m128>(scale + i * kGroups / 4 * kTile); };
  __m512 v = _mm512_castps128_ps512(of(0));
  v = _mm512_maskz_insertf32x4(0xffff, v, of(1), 1);
  v = _mm512_maskz_insertf32x4(0xffff, v, of(2), 2);
  return (F32)_mm512_maskz_insertf32x4(0xffff, v, of(3), 3);
}

// Adds `count` units of N rows of w, unpacked, by one lot of x, from the first of these units on, to sums. Scales of w are those
// of the units' groups.
template <int kGroups>
inline void add_units(const char* w, int64_t count, const char* x, const float (*scales)[kTile], int N, F32* sums) {
  alignas(64) I32 products[kUnits][kTile];
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

// Scales and zero points of group g as floats; the next tile's are fetched, from the same pages.
inline void stage_group(const Int4Tile& w, int64_t g, float* scales, float* zero_points) {
  const char *const scale = w.scale + g * w.stride, *const zero_point = w.zero_point + g * w.stride;
  const int64_t line = kTile * w.element_bytes;
  for (int64_t i = 0; i < line; i += kLine) {
    __builtin_prefetch(scale + line + i, 0, 2);
    __builtin_prefetch(zero_point + line + i, 0, 2);
  }
  for (int n = 0; n < kTile; n += kFloats) {
    store(scales + n, floats_at(w.element, scale + n * w.element_bytes));
    store(zero_points + n, floats_at(w.element, zero_point + n * w.element_bytes));
  }
}

// acc[m][n] += zero_point[n] · Σ of row m's group.
inline void add_zero_points(const float* zero_points, const float* x_sums, int64_t stride, int64_t M, float (*acc)[kTile]) {
  F32 zero_point[kTile / kFloats];
  memcpy(zero_point, zero_points, sizeof zero_point);
  for (int64_t m = 0; m < M; ++m)
    for (int i = 0; i < kTile / kFloats; ++i) {
      float* const to = acc[m] + i * kFloats;
      store(to, load<F32>(to) + zero_point[i] * x_sums[m * stride]);
    }
}

// M rows of x, at most kMostLots lots, by up to kTile rows of w.
template <int kGroups>
inline void dot_plane_tiles(const char* x, const float* x_sums, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
                            float (*acc)[kTile]) {
  constexpr int64_t kLot = kTileSide / 2 / kGroups;
  const int64_t units = units_of(K), groups = K / w.group_size, lots = (M + kLot - 1) / kLot, bytes = K / 2;
  F32 sums[kMostLots][kTile];
  memset(sums, 0, static_cast<size_t>(lots) * sizeof sums[0]);
  alignas(64) char rows[kUnits * 4 * kTileBytes];
  _tile_loadconfig(&kTileConfig);
  const int64_t parts = w.group_size * kGroups / kPlaneUnit;  // of a group
  int64_t g = 0, part = 0;                                    // the next
  for (int64_t u = 0; u < units; u += kUnits) {
    const int64_t count = units - u < kUnits ? units - u : kUnits;
    // A unit's part of a group; what does not exist has scales of zero.
    constexpr int64_t kParts = kUnits * kGroups;
    alignas(64) float scales[kParts][kTile], zero_points[kParts][kTile];
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
      const uint8_t* const row = w.packed + n * bytes + u * kPlaneBytes;
      // What is next of this row, or of the next tile's.
      const uint8_t* const ahead = u + kUnits < units ? row + kUnits * kPlaneBytes : row + kTile * bytes - u * kPlaneBytes;
      char* const to = rows + n / kTileSide * 2 * kTileBytes + n % kTileSide * kTileRowBytes;
      for (int64_t i = 0; i < count; ++i) {
        __builtin_prefetch(ahead + i * kPlaneBytes, 0, 2);
        const int64_t left = bytes - (u + i) * kPlaneBytes;
        const U32 words = left >= kPlaneBytes
                              ? load<U32>(row + i * kPlaneBytes)
                              : (U32)_mm512_maskz_loadu_epi8(~__mmask64{0} >> (kPlaneBytes - left), row + i * kPlaneBytes);
        store(to + i * 4 * kTileBytes, words << 4 & 0xf0f0f0f0u);
        store(to + i * 4 * kTileBytes + kTileBytes, words & 0xf0f0f0f0u);
      }
    }
    for (int64_t lot = 0; lot < lots; ++lot)
      add_units<kGroups>(rows, count, x + (lot * units + u) * kUnitBytes, scales, static_cast<int>(N), sums[lot]);
  }
  _tile_release();
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t column = m % kLot; column < kTileSide; column += kLot) acc[m][n] += sums[m / kLot][n][column];
}

template <int kGroups>
inline void dot_plane_lots(const char* x, const float* x_sums, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
                           float (*acc)[kTile]) {
  constexpr int64_t kMost = kMostLots * kTileSide / 2 / kGroups;
  memset(acc, 0, static_cast<size_t>(M) * sizeof acc[0]);
  for (int64_t m = 0; m < M; m += kMost)
    dot_plane_tiles<kGroups>(x + m / kMost * kMostLots * units_of(K) * kUnitBytes, x_sums + m * (K / w.group_size),
                             M - m < kMost ? M - m : kMost, w, N, K, acc + m);
}

void dot_plane_tiles(const int8_t* x, int64_t, const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
                     float (*acc)[kTile]) {
  const char* const joined = reinterpret_cast<const char*>(x);
  if (groups_of_unit(w.group_size) == 2) return dot_plane_lots<2>(joined, of_x.sums, M, w, N, K, acc);
  dot_plane_lots<1>(joined, of_x.sums, M, w, N, K, acc);
}

constexpr Planes kPlaneTiles{
    .bytes = 2, .arrange = arrange_planes<2>, .join = join_planes, .joined_bytes = joined_bytes, .dot = dot_plane_tiles};

}  // namespace
}  // namespace aoext::cpu
