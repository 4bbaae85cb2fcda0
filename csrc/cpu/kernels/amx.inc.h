// Tiles of bfloat16 products with AMX: acc[m][n] += Σ x[m][k] · w[n][k], in float32.
//
// A tile register is 16 rows of 64 bytes; tdpbf16ps adds 16·16 sums over 32 k in 16 cycles. Rows of w are its first operand as
// they lie. Its second wants pairs of k side by side for 16 rows of x: `inputs` writes x so, once, and nothing of w is
// transposed. Sums come out as [n][m]; they are transposed once a block, 64 instructions beside 16 products of 16·16·32.
//
// A block is 32 rows of w by 512 k, 32 KB: it stays in the first cache while x comes from the second. Two tiles of w by two of x
// are four loads for four products, 32 cycles beside 64.
//
// Subnormal operands count as zero, far below bfloat16's own rounding.
namespace aoext::cpu {
namespace {

constexpr int kTileSide = 16;  // rows of a tile register, and sums in each
constexpr int64_t kDepthAmx = 512;
constexpr int64_t kWordBytes = 4, kTileRowBytes = kTileSide * kWordBytes;

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

int32_t inputs_amx(Element from, const void* source, int64_t n, void* out) {
  alignas(64) uint16_t row[kDepthAmx];
  operands<Element::bf16, uint16_t>(from, source, n, row);
  const int64_t words = (n + kPad - 1) / kPad * kPad / 2;
  for (int64_t i = 0; i < words; ++i) memcpy(static_cast<char*>(out) + i * kTileRowBytes, row + 2 * i, kWordBytes);
  return 0;
}

// Rows of a tile of sums, transposed: each of four steps interleaves row i with row i + 8, which turns the index (row, column)
// by one bit.
inline void transpose(F32 (&rows)[kTileSide]) {
  const U32 low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = low + 8;
  for (int step = 0; step < 4; ++step) {
    F32 next[kTileSide];
    for (int i = 0; i < kTileSide / 2; ++i) {
      next[2 * i] = (F32)_mm512_permutex2var_ps((__m512)rows[i], (__m512i)low, (__m512)rows[i + kTileSide / 2]);
      next[2 * i + 1] = (F32)_mm512_permutex2var_ps((__m512)rows[i], (__m512i)high, (__m512)rows[i + kTileSide / 2]);
    }
    memcpy(rows, next, sizeof next);
  }
}

// kRows tiles of w by kInputs of x; the sums of M rows of x are kept.
template <int kRows, int kInputs>
inline void multiply_tiles(const uint16_t* w, const uint16_t* x, int64_t M, int64_t K, float* acc) {
  constexpr int64_t kApart = kTileSide * kDepthAmx, kRowBytes = kDepthAmx * sizeof(uint16_t);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < K; k += 2 * kTileSide) {
    _tile_loadd(4, w + k, kRowBytes);
    _tile_loadd(6, x + k * kTileSide, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kInputs > 1) {
      _tile_loadd(7, x + kApart + k * kTileSide, kTileRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, w + kApart + k, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kInputs > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  F32 sums[2][2][kTileSide];
  _tile_stored(0, sums[0][0], kTileRowBytes);
  _tile_stored(1, sums[0][1], kTileRowBytes);
  _tile_stored(2, sums[1][0], kTileRowBytes);
  _tile_stored(3, sums[1][1], kTileRowBytes);
  for (int i = 0; i < kInputs; ++i) {
    for (int r = 0; r < kRows; ++r) {
      transpose(sums[r][i]);
      for (int64_t m = i * kTileSide; m < M && m < (i + 1) * kTileSide; ++m) {
        float* const to = acc + m * kTile + r * kTileSide;
        store(to, load<F32>(to) + sums[r][i][m % kTileSide]);
      }
    }
  }
}

template <int kRows>
inline void multiply_rows(const uint16_t* w, const uint16_t* x, int64_t M, int64_t K, float* acc) {
  for (int64_t m = 0; m < M; m += 2 * kTileSide) {
    const uint16_t* const inputs = x + m * kDepthAmx;
    if (M - m > kTileSide)
      multiply_tiles<kRows, 2>(w, inputs, M - m, K, acc + m * kTile);
    else
      multiply_tiles<kRows, 1>(w, inputs, M - m, K, acc + m * kTile);
  }
}

// Tile registers are set up and given back within a call: other libraries use them on the same threads.
void multiply_amx(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  const uint16_t *const rows = static_cast<const uint16_t*>(w), *const inputs = static_cast<const uint16_t*>(x);
  _tile_loadconfig(&kTileConfig);
  if (N > kTileSide)
    multiply_rows<2>(rows, inputs, M, K, static_cast<float*>(acc));
  else
    multiply_rows<1>(rows, inputs, M, K, static_cast<float*>(acc));
  _tile_release();
}

constexpr Tiles kTilesAmx{sizeof(uint16_t),
                          2 * kTileSide,
                          kDepthAmx,
                          kTileSide,
                          inputs_amx,
                          operands<Element::bf16, uint16_t>,
                          operands_of_int4<Element::bf16, uint16_t>,
                          multiply_amx};
constexpr const Tiles* kBf16 = &kTilesAmx;

}  // namespace
}  // namespace aoext::cpu
