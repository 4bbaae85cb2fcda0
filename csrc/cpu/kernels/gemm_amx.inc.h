// gemm with AMX: acc[m][n] += Σ x[m][k] · w[n][k], of bfloat16 in float32 or of int8 in int32.
//
// A tile register is 16 rows of 64 bytes; an instruction adds 16·16 sums over 32 k (tdpbf16ps) or 64 (tdpbssd) in 16 cycles.
// Rows of w are its first operand as they lie, so blocks are packed with the loaders of gemm.inc.h. Its second wants 4 bytes of k
// side by side for MR = 16 rows of x: pack_x_amx writes x so, once, and nothing of w is transposed. Sums wait as they come out,
// for 16 rows of x as two tiles [n][m], and are transposed once all of K has been multiplied.
//
// A packed block is NC = 32 rows of w by KC = 1 KB, 32 KB: it stays in the first cache while x comes from the second. Two tiles
// of w by two of x are four loads for four products, 32 cycles beside 64. A product's sums are ready after 52 cycles: with one
// tile of x every other step has sums of its own.
//
// Subnormal operands of bfloat16 count as zero, far below its own rounding.
#pragma once

#include "cpu/kernels/bf16_avx512.inc.h"
#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kTileSide = 16;  // rows of a tile register, and sums in each
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kKCBytes = 1024;  // of a block's row

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileConfig() {
    for (int i = 0; i < 8; ++i) {
      row_bytes[i] = kTileRowBytes;
      rows[i] = kTileSide;
    }
  }
};
constexpr TileConfig kTileConfig;

struct DotBf16 {
  using Operand = uint16_t;
  using Sum = float;
  using Sums = F32;
  static constexpr bool kIntegers = false;
};

struct DotI8 {
  using Operand = int8_t;
  using Sum = int32_t;
  using Sums = I32;
  static constexpr bool kIntegers = true;
};

template <class P>
constexpr int64_t kKCAmx = kKCBytes / static_cast<int64_t>(sizeof(typename P::Operand));

// The words of a tile register, transposed: each of four steps interleaves row i with row i + 8, which turns the index (row,
// column) by one bit.
template <class Words>
inline void transpose(Words (&rows)[kTileSide]) {
  const U32 low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = low + 8;
  for (int step = 0; step < 4; ++step) {
    Words next[kTileSide];
    for (int i = 0; i < kTileSide / 2; ++i) {
      next[2 * i] = (Words)_mm512_permutex2var_ps((__m512)rows[i], (__m512i)low, (__m512)rows[i + kTileSide / 2]);
      next[2 * i + 1] = (Words)_mm512_permutex2var_ps((__m512)rows[i], (__m512i)high, (__m512)rows[i + kTileSide / 2]);
    }
    memcpy(rows, next, sizeof next);
  }
}

// A loader (gemm.inc.h).
struct RowsOfBytes {
  using Operand = int8_t;
  static void load(Element, const void* source, int64_t n, int8_t* out) {
    memcpy(out, source, static_cast<size_t>(n));
    pad_with_zeros(out, n);
  }
};

// What Loader makes of rows of x, a word of each in turn.
template <class P, class Loader>
void pack_x_amx(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t*) {
  alignas(64) typename P::Operand panel[kTileSide][kKCAmx<P>];
  for (int64_t r = 0; r < rows; ++r) Loader::load(from, static_cast<const char*>(source) + r * stride, n, panel[r]);
  const int64_t bytes = (n + kPad - 1) / kPad * kPad * static_cast<int64_t>(sizeof panel[0][0]);
  for (int64_t k = 0; k < bytes; k += kTileRowBytes) {
    U32 words[kTileSide];
    for (int r = 0; r < kTileSide; ++r) words[r] = r < rows ? load<U32>(reinterpret_cast<const char*>(panel[r]) + k) : U32{};
    transpose(words);
    memcpy(static_cast<char*>(out) + k * kTileSide, words, sizeof words);
  }
}

// ---- products ------------------------------------------------------------------------------------------

// The intrinsics name registers by their spelling.
#define AOEXT_TILE_PRODUCT(sums, w, x) \
  do {                                 \
    if constexpr (P::kIntegers)        \
      _tile_dpbssd(sums, w, x);        \
    else                               \
      _tile_dpbf16ps(sums, w, x);      \
  } while (false)

constexpr int64_t kTileSums = kTileSide * kTileSide;
static_assert(kPanel == 2 * kTileSide, "sums of 16 rows of x are two tiles");

// kTilesOfW tiles of w by kTilesOfX of x.
template <class P, int kTilesOfW, int kTilesOfX>
inline void micro_kernel_amx(const char* w, const char* x, int64_t bytes, typename P::Sum* acc) {
  constexpr int64_t kApart = kTileSide * kKCBytes, kSumsApart = kTileSide * kPanel;
  _tile_loadd(0, acc, kTileRowBytes);
  if constexpr (kTilesOfX > 1)
    _tile_loadd(1, acc + kSumsApart, kTileRowBytes);
  else
    _tile_zero(1);
  if constexpr (kTilesOfW > 1) {
    _tile_loadd(2, acc + kTileSums, kTileRowBytes);
    if constexpr (kTilesOfX > 1)
      _tile_loadd(3, acc + kSumsApart + kTileSums, kTileRowBytes);
    else
      _tile_zero(3);
  }
  static_assert(kPad * sizeof(typename P::Operand) % (2 * kTileRowBytes) == 0, "steps come in pairs");
  for (int64_t k = 0; kTilesOfX == 1 && k < bytes; k += 2 * kTileRowBytes) {
    _tile_loadd(4, w + k, kKCBytes);
    _tile_loadd(6, x + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(0, 4, 6);
    if constexpr (kTilesOfW > 1) {
      _tile_loadd(5, w + kApart + k, kKCBytes);
      AOEXT_TILE_PRODUCT(2, 5, 6);
    }
    _tile_loadd(4, w + k + kTileRowBytes, kKCBytes);
    _tile_loadd(7, x + (k + kTileRowBytes) * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(1, 4, 7);
    if constexpr (kTilesOfW > 1) {
      _tile_loadd(5, w + kApart + k + kTileRowBytes, kKCBytes);
      AOEXT_TILE_PRODUCT(3, 5, 7);
    }
  }
  for (int64_t k = 0; kTilesOfX > 1 && k < bytes; k += kTileRowBytes) {
    _tile_loadd(4, w + k, kKCBytes);
    _tile_loadd(6, x + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(0, 4, 6);
    _tile_loadd(7, x + kApart + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(1, 4, 7);
    if constexpr (kTilesOfW > 1) {
      _tile_loadd(5, w + kApart + k, kKCBytes);
      AOEXT_TILE_PRODUCT(2, 5, 6);
      AOEXT_TILE_PRODUCT(3, 5, 7);
    }
  }
  _tile_stored(0, acc, kTileRowBytes);
  if constexpr (kTilesOfW > 1) _tile_stored(2, acc + kTileSums, kTileRowBytes);
  if constexpr (kTilesOfX > 1) {
    _tile_stored(1, acc + kSumsApart, kTileRowBytes);
    if constexpr (kTilesOfW > 1) _tile_stored(3, acc + kSumsApart + kTileSums, kTileRowBytes);
  } else {
    typename P::Sums others[kTilesOfW][kTileSide];
    _tile_stored(1, others[0], kTileRowBytes);
    if constexpr (kTilesOfW > 1) _tile_stored(3, others[1], kTileRowBytes);
    for (int r = 0; r < kTilesOfW; ++r)
      for (int i = 0; i < kTileSide; ++i) {
        typename P::Sum* const to = acc + r * kTileSums + i * kTileSide;
        store(to, load<typename P::Sums>(to) + others[r][i]);
      }
  }
}

template <class P, int kTilesOfW>
inline void macro_kernel_rows(const char* w, const char* x, int64_t M, int64_t bytes, typename P::Sum* acc) {
  for (int64_t m = 0; m < M; m += 2 * kTileSide) {
    const char* const inputs = x + m * kKCBytes;
    if (M - m > kTileSide)
      micro_kernel_amx<P, kTilesOfW, /*kTilesOfX=*/2>(w, inputs, bytes, acc + m * kPanel);
    else
      micro_kernel_amx<P, kTilesOfW, /*kTilesOfX=*/1>(w, inputs, bytes, acc + m * kPanel);
  }
}

// Tile registers are set up and given back within a call: other libraries use them on the same threads.
template <class P>
void macro_kernel_amx(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  const char *const rows = static_cast<const char*>(w), *const inputs = static_cast<const char*>(x);
  const int64_t bytes = K * static_cast<int64_t>(sizeof(typename P::Operand));
  _tile_loadconfig(&kTileConfig);
  if (N > kTileSide)
    macro_kernel_rows<P, /*kTilesOfW=*/2>(rows, inputs, M, bytes, static_cast<typename P::Sum*>(acc));
  else
    macro_kernel_rows<P, /*kTilesOfW=*/1>(rows, inputs, M, bytes, static_cast<typename P::Sum*>(acc));
  _tile_release();
}

// To sums as they come out.
void add_group_terms_amx(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc) {
  for (int64_t m = 0; m < M; m += kTileSide)
    for (int r = 0; r < 2; ++r) {
      float* const to = static_cast<float*>(acc) + m * kPanel + r * kTileSums;
      F32 sums[kTileSide];
      memcpy(sums, to, sizeof sums);
      for (int64_t g = 0; g < groups; ++g) {
        const F32 x = load<F32>(x_sums + g * x_stride + m);
        for (int n = 0; n < kTileSide; ++n) sums[n] += x * terms[g * kPanel + r * kTileSide + n];
      }
      memcpy(to, sums, sizeof sums);
    }
}

template <class P>
void order_sums_amx(int64_t M, void* acc) {
  using Sums = typename P::Sums;
  for (int64_t m = 0; m < M; m += kTileSide) {
    Sums tiles[2][kTileSide];
    char* const rows = static_cast<char*>(acc) + m * static_cast<int64_t>(2 * sizeof(Sums));
    memcpy(tiles, rows, sizeof tiles);
    transpose(tiles[0]);
    transpose(tiles[1]);
    for (int i = 0; i < kTileSide; ++i)
      for (int r = 0; r < 2; ++r) store(rows + (2 * i + r) * static_cast<int64_t>(sizeof(Sums)), tiles[r][i]);
  }
}

template <class P, class Loader>
constexpr GemmShape kShapeAmx{.operand_bytes = sizeof(typename P::Operand),
                              .NC = 2 * kTileSide,
                              .KC = kKCAmx<P>,
                              .MR = kTileSide,
                              .pack_x = pack_x_amx<P, Loader>,
                              .order_sums = order_sums_amx<P>};

constexpr Gemm8Bit kGemmBf16{.shape = kShapeAmx<DotBf16, RowsAsBf16>,
                             .pack_w = pack_8bit_rows<RowsAsBf16, kKCAmx<DotBf16>>,
                             .macro_kernel = macro_kernel_amx<DotBf16>};
constexpr Gemm8Bit kGemmI8{.shape = kShapeAmx<DotI8, RowsOfBytes>,
                           .pack_w = pack_8bit_rows<RowsOfBytes, kKCAmx<DotI8>>,
                           .macro_kernel = macro_kernel_amx<DotI8>};

}  // namespace
}  // namespace aoext::cpu
