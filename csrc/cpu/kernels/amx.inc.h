// Tiles of products with AMX: acc[m][n] += Σ x[m][k] · w[n][k], of bfloat16 in float32 or of int8 in int32.
//
// A tile register is 16 rows of 64 bytes; an instruction adds 16·16 sums over 32 k (tdpbf16ps) or 64 (tdpbssd) in 16 cycles.
// Rows of w are its first operand as they lie. Its second wants 4 bytes of k side by side for 16 rows of x: `inputs` writes x so,
// once, and nothing of w is transposed. Sums wait as they come out, for 16 rows of x as two tiles [n][m], and are transposed
// once all of K has been multiplied.
//
// A block is 32 rows of w by 1 KB, 32 KB: it stays in the first cache while x comes from the second. Two tiles of w by two of x
// are four loads for four products, 32 cycles beside 64. A product's sums are ready after 52 cycles: with one tile of x every
// other step has sums of its own.
//
// Subnormal operands of bfloat16 count as zero, far below its own rounding.
namespace aoext::cpu {
namespace {

constexpr int kTileSide = 16;  // rows of a tile register, and sums in each
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kDepthBytes = 1024;  // of a block's row

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

struct AmxBf16 {
  using Operand = uint16_t;
  using Sum = float;
  using Sums = F32;
  static constexpr bool kIntegers = false;
};

struct AmxI8 {
  using Operand = int8_t;
  using Sum = int32_t;
  using Sums = I32;
  static constexpr bool kIntegers = true;
};

template <class P>
constexpr int64_t kDepthAmx = kDepthBytes / static_cast<int64_t>(sizeof(typename P::Operand));

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

void bytes_as_they_are(Element, const void* source, int64_t n, void* out) {
  memcpy(out, source, static_cast<size_t>(n));
  fill_up(static_cast<int8_t*>(out), n);
}

// What kOperands makes of rows of x, a word of each in turn.
template <class P, Operands kOperands>
void inputs_amx(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t*) {
  alignas(64) typename P::Operand lot[kTileSide][kDepthAmx<P>];
  for (int64_t r = 0; r < rows; ++r) kOperands(from, static_cast<const char*>(source) + r * stride, n, lot[r]);
  const int64_t bytes = (n + kPad - 1) / kPad * kPad * static_cast<int64_t>(sizeof lot[0][0]);
  for (int64_t k = 0; k < bytes; k += kTileRowBytes) {
    U32 words[kTileSide];
    for (int r = 0; r < kTileSide; ++r) words[r] = r < rows ? load<U32>(reinterpret_cast<const char*>(lot[r]) + k) : U32{};
    transpose(words);
    memcpy(static_cast<char*>(out) + k * kTileSide, words, sizeof words);
  }
}

// ---- int4 as bfloat16 ----------------------------------------------------------------------------------
//
// Of 128 weights, 32 words of 16 bits, shifts by 0, 4, 8 and 12 bring each nibble in turn to where it looks up
// its group's values: 12 instructions. So they lie as k = 0, 4, …, 124, then 1, 5, …, 125 and so on, and x does too.
constexpr int64_t kFours = 128, kNibblesOfWord = 4, kWords = kFours / kNibblesOfWord;
static_assert(kPad % kFours == 0, "padded rows are whole lots of 128");

// Padded rows.
inline void lay_in_fours(const uint16_t* in, int64_t n, uint16_t* out) {
  for (int64_t k = 0; k < n; k += kFours)
    for (int64_t i = 0; i < kNibblesOfWord; ++i)
      for (int64_t j = 0; j < kWords; ++j) out[k + i * kWords + j] = in[k + kNibblesOfWord * j + i];
}

template <int64_t kDepth>
void operands_in_fours(Element from, const void* source, int64_t n, void* out) {
  alignas(64) uint16_t row[kDepth];
  operands<Element::bf16, uint16_t>(from, source, n, row);
  lay_in_fours(row, n, static_cast<uint16_t*>(out));
}

// 128 weights of kGroups groups, the first of them g and of which `groups` exist, from `words` of which `kept` have weights.
template <int kGroups>
inline void int4_in_fours(const Int4Row& row, int64_t g, int64_t groups, __m512i words, __mmask32 kept, uint16_t* out) {
  static_assert(kGroups == 1 || kGroups == 2 || kGroups == 4, "a table has 64 values");
  const auto values = [&](int64_t i) {
    const int64_t at = (g + (i < groups ? i : 0)) * kTile;
    return (__m512)(values_of_nibbles() * row.scale[at] + row.zero_point[at]);
  };
  // An index takes a bit too many where tables are of one group: they hold it twice.
  const __m512 first = values(0);
  const __m512i low = (__m512i)_mm512_cvtne2ps_pbh(kGroups == 1 ? first : values(1), first);
  const __m512i high = kGroups == 4 ? (__m512i)_mm512_cvtne2ps_pbh(values(3), values(2)) : low;
  uint16_t group_of_word[kWords];
  for (int64_t j = 0; j < kWords; ++j) group_of_word[j] = static_cast<uint16_t>(j * kGroups / kWords << 4);
  const __m512i group = load<__m512i>(group_of_word), nibble = _mm512_set1_epi16(15);
  for (int i = 0; i < kNibblesOfWord; ++i) {
    __m512i index = _mm512_maskz_srli_epi16(~__mmask32{0}, words, static_cast<unsigned>(4 * i));
    if constexpr (kGroups > 1) index = _mm512_or_si512(_mm512_and_si512(index, nibble), group);
    __m512i values_of_words = _mm512_maskz_permutexvar_epi16(kept, index, low);
    // The second half of the words looks up again: two look-ups in one table each take less than one in two.
    if constexpr (kGroups == 4) values_of_words = _mm512_mask_permutexvar_epi16(values_of_words, kept & 0xffff0000u, index, high);
    store(out + i * kWords, values_of_words);
  }
}

// Lots of 128 weights, of kGroups groups each or `lots_of_group` to one, in a loop without divisions.
template <int kGroups>
inline void weights_in_fours(const Int4Row& row, int64_t begin, int64_t n, int64_t lots_of_group, uint16_t* out) {
  const uint8_t* const packed = row.packed + begin / 2;
  int64_t g = begin / row.group_size, left = kGroups > 1 ? 1 : lots_of_group - begin / kFours % lots_of_group, i = 0;
  for (; i + kFours <= n; i += kFours) {
    int4_in_fours<kGroups>(row, g, kGroups, load<__m512i>(packed + i / 2), ~__mmask32{0}, out + i);
    if (--left > 0) continue;
    g += kGroups;
    left = lots_of_group;
  }
  if (i == n) return;
  const int64_t count = n - i;
  const __m512i words = _mm512_maskz_loadu_epi8(~__mmask64{0} >> (kFours - count) / 2, packed + i / 2);
  const __mmask32 kept = ~__mmask32{0} >> (kWords - count / kNibblesOfWord);
  int4_in_fours<kGroups>(row, g, count / row.group_size, words, kept, out + i);
}

void weights_in_fours(const Int4Row& row, int64_t begin, int64_t n, void* out) {
  uint16_t* const to = static_cast<uint16_t*>(out);
  if (begin % kFours == 0) {
    if (row.group_size % kFours == 0) return weights_in_fours<1>(row, begin, n, row.group_size / kFours, to);
    if (row.group_size == 64) return weights_in_fours<2>(row, begin, n, 1, to);
    if (row.group_size == 32) return weights_in_fours<4>(row, begin, n, 1, to);
  }
  for (int64_t i = 0; i < n; i += kFours) {
    const int64_t count = n - i < kFours ? n - i : kFours;
    uint16_t values[kFours];
    dequantize_int4_as(row, begin + i, count, values);
    fill_up(values, count);
    lay_in_fours(values, kFours, to + i);
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
static_assert(kTile == 2 * kTileSide, "sums of 16 rows of x are two tiles");

// kRows tiles of w by kInputs of x.
template <class P, int kRows, int kInputs>
inline void multiply_tiles(const char* w, const char* x, int64_t bytes, typename P::Sum* acc) {
  constexpr int64_t kApart = kTileSide * kDepthBytes, kSumsApart = kTileSide * kTile;
  _tile_loadd(0, acc, kTileRowBytes);
  if constexpr (kInputs > 1)
    _tile_loadd(1, acc + kSumsApart, kTileRowBytes);
  else
    _tile_zero(1);
  if constexpr (kRows > 1) {
    _tile_loadd(2, acc + kTileSums, kTileRowBytes);
    if constexpr (kInputs > 1)
      _tile_loadd(3, acc + kSumsApart + kTileSums, kTileRowBytes);
    else
      _tile_zero(3);
  }
  static_assert(kPad * sizeof(typename P::Operand) % (2 * kTileRowBytes) == 0, "steps come in pairs");
  for (int64_t k = 0; kInputs == 1 && k < bytes; k += 2 * kTileRowBytes) {
    _tile_loadd(4, w + k, kDepthBytes);
    _tile_loadd(6, x + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(0, 4, 6);
    if constexpr (kRows > 1) {
      _tile_loadd(5, w + kApart + k, kDepthBytes);
      AOEXT_TILE_PRODUCT(2, 5, 6);
    }
    _tile_loadd(4, w + k + kTileRowBytes, kDepthBytes);
    _tile_loadd(7, x + (k + kTileRowBytes) * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(1, 4, 7);
    if constexpr (kRows > 1) {
      _tile_loadd(5, w + kApart + k + kTileRowBytes, kDepthBytes);
      AOEXT_TILE_PRODUCT(3, 5, 7);
    }
  }
  for (int64_t k = 0; kInputs > 1 && k < bytes; k += kTileRowBytes) {
    _tile_loadd(4, w + k, kDepthBytes);
    _tile_loadd(6, x + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(0, 4, 6);
    _tile_loadd(7, x + kApart + k * kTileSide, kTileRowBytes);
    AOEXT_TILE_PRODUCT(1, 4, 7);
    if constexpr (kRows > 1) {
      _tile_loadd(5, w + kApart + k, kDepthBytes);
      AOEXT_TILE_PRODUCT(2, 5, 6);
      AOEXT_TILE_PRODUCT(3, 5, 7);
    }
  }
  _tile_stored(0, acc, kTileRowBytes);
  if constexpr (kRows > 1) _tile_stored(2, acc + kTileSums, kTileRowBytes);
  if constexpr (kInputs > 1) {
    _tile_stored(1, acc + kSumsApart, kTileRowBytes);
    if constexpr (kRows > 1) _tile_stored(3, acc + kSumsApart + kTileSums, kTileRowBytes);
  } else {
    typename P::Sums others[kRows][kTileSide];
    _tile_stored(1, others[0], kTileRowBytes);
    if constexpr (kRows > 1) _tile_stored(3, others[1], kTileRowBytes);
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kTileSide; ++i) {
        typename P::Sum* const to = acc + r * kTileSums + i * kTileSide;
        store(to, load<typename P::Sums>(to) + others[r][i]);
      }
  }
}

template <class P, int kRows>
inline void multiply_rows(const char* w, const char* x, int64_t M, int64_t bytes, typename P::Sum* acc) {
  for (int64_t m = 0; m < M; m += 2 * kTileSide) {
    const char* const inputs = x + m * kDepthBytes;
    if (M - m > kTileSide)
      multiply_tiles<P, kRows, 2>(w, inputs, bytes, acc + m * kTile);
    else
      multiply_tiles<P, kRows, 1>(w, inputs, bytes, acc + m * kTile);
  }
}

// Tile registers are set up and given back within a call: other libraries use them on the same threads.
template <class P>
void multiply_amx(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  const char *const rows = static_cast<const char*>(w), *const inputs = static_cast<const char*>(x);
  const int64_t bytes = K * static_cast<int64_t>(sizeof(typename P::Operand));
  _tile_loadconfig(&kTileConfig);
  if (N > kTileSide)
    multiply_rows<P, 2>(rows, inputs, M, bytes, static_cast<typename P::Sum*>(acc));
  else
    multiply_rows<P, 1>(rows, inputs, M, bytes, static_cast<typename P::Sum*>(acc));
  _tile_release();
}

// To sums as they come out.
void add_of_groups_amx(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc) {
  for (int64_t m = 0; m < M; m += kTileSide)
    for (int r = 0; r < 2; ++r) {
      float* const to = static_cast<float*>(acc) + m * kTile + r * kTileSums;
      F32 sums[kTileSide];
      memcpy(sums, to, sizeof sums);
      for (int64_t g = 0; g < groups; ++g) {
        const F32 x = load<F32>(x_sums + g * x_stride + m);
        for (int n = 0; n < kTileSide; ++n) sums[n] += x * terms[g * kTile + r * kTileSide + n];
      }
      memcpy(to, sums, sizeof sums);
    }
}

template <class P>
void finish_amx(int64_t M, void* acc) {
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

template <class P, Operands kInputs>
constexpr Tiles amx_tiles(decltype(Tiles::weights) weights, decltype(Tiles::weights_int4) weights_int4 = nullptr,
                          decltype(Tiles::add_of_groups) add_of_groups = nullptr) {
  return {sizeof(typename P::Operand),
          2 * kTileSide,
          kDepthAmx<P>,
          kTileSide,
          inputs_amx<P, kInputs>,
          weights,
          weights_int4,
          multiply_amx<P>,
          add_of_groups,
          finish_amx<P>};
}
constexpr Tiles kAmxBf16 = amx_tiles<AmxBf16, operands<Element::bf16, uint16_t>>(
    weights<uint16_t, kDepthAmx<AmxBf16>, operands<Element::bf16, uint16_t>>);
constexpr Tiles kAmxBf16Int4 = amx_tiles<AmxBf16, operands_in_fours<kDepthAmx<AmxBf16>>>(
    nullptr, weights_int4<uint16_t, kDepthAmx<AmxBf16>, weights_in_fours>, add_of_groups_amx);
constexpr Tiles kAmxI8 = amx_tiles<AmxI8, bytes_as_they_are>(weights<int8_t, kDepthAmx<AmxI8>, bytes_as_they_are>);
constexpr const Tiles *kBf16 = &kAmxBf16, *kBf16Int4 = &kAmxBf16Int4, *kI8 = &kAmxI8;

// ---- int4 by planes ------------------------------------------------------------------------------------
//
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

constexpr Planes kPlaneTilesHere{2, arrange_planes<2>, join_planes, joined_bytes, dot_plane_tiles, nullptr, nullptr};
constexpr const Planes* kPlaneTiles = &kPlaneTilesHere;

}  // namespace
}  // namespace aoext::cpu
