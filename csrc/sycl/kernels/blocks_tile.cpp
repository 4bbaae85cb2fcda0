// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N] for few rows, where w has a scale a block [block_n, group_size], and x of 8 bits one for
// input_group_size elements of a row.
//
//   w lut4, x bf16 or fp16                4-bit codes of a table of 16 float32 (table4.h)
//   w int8, e4m3, e5m2, x bf16 or fp16    (eight_bit.h)
//   w int8, e4m3, e5m2, x of w's type     int8 sums of a scale in int32, float8 as bf16
//
// Memory is walked as split_k.h says: a lane reads its own row of w, and the scales of its row, which lie side by side.
// Groups are multiples of 32, of a table's codes of 16; the last one may be partial.
//
// AOEXT_WEIGHT and AOEXT_INPUT are the types of w and x.
#include "eight_bit.h"
#include "group_tile.h"
#include "scale.h"
#include "table4.h"

namespace aoext::xpu {
namespace {

// A lane's scales of w, in memory [ceil(N / block_n), ceil(K / group_size)].
template <int C, int kUnit>
struct BlockScales {
  const void* data;
  Element type;
  GroupOf<kUnit> group_of;
  int64_t rows[C];  // where those of the lane's columns begin

  template <class Output>
  BlockScales(const void* scale, Element type, const Output& out, int64_t N, int block_n, int K, int group_size)
      : data(scale), type(type), group_of(group_size) {
    const int64_t groups = (static_cast<unsigned>(K) + group_size - 1u) / static_cast<unsigned>(group_size);
    // Columns are less than 2^31, and a division of 64 bits is a long one.
    const auto block = [&](int64_t column) { return static_cast<unsigned>(column) / static_cast<unsigned>(block_n); };
    if (out.expert > 0) out.move(data, (block(N - 1) + 1) * groups, type);
#pragma unroll
    for (int c = 0; c < C; ++c) rows[c] = block(out.columns[c]) * groups;
  }

  Scale scale(int64_t /*column*/, int c, int k) const { return {load_scale(data, rows[c] + group_of(k), type), 0}; }
};

#ifdef AOEXT_TABLE
template <int kScaleK>
using CodesOf = Table4<AOEXT_INPUT, kScaleK>;
constexpr int kUnit = 16;  // of groups
#else
template <int kScaleK>
using CodesOf = EightBit<AOEXT_INPUT, AOEXT_WEIGHT>;
constexpr int kUnit = kStep;
#endif

template <class Codes, int R, int B, int C>
struct Blocks {
  static constexpr Element kProduct = Codes::kProduct;
  static constexpr int kOperations = Codes::kOperations, kLimbs = Codes::kLimbs, kBits = Codes::kBits;
  static constexpr bool kZeroPoints = false, kRowScales = AOEXT_INPUT == AOEXT_WEIGHT;

  Codes codes;
  BlockScales<C, kUnit> scales;
  RowScales<R, B, kStep> row_scales;

  void decode(const char* w, Dwords (&b)[kOperations]) const { codes.decode(w, b); }

  template <class Output>
  void input(const void* x, const Output& out, int K, int k, int t, int i,
             typename Tile<kProduct, R>::A (&a)[kLimbs][kOperations]) const {
    Codes::template input<R, B>(x, out, K, k, t, i, a);
  }

  Scale scale(int64_t column, int c, int k) const { return scales.scale(column, c, k); }

  static bool has_row_scales() { return true; }
  float row_scale(int k, int i) const { return row_scales.scale(k, i); }
};

template <int R, int B, int C, int kScaleK, int kTileK>
inline void blocks_tile(void* y, const void* x, const void* weight, const Experts& experts, const float* table, const void* scale,
                        const float* global_scale, int global_scales, const float* input_scale, const void* bias, int64_t M,
                        int64_t N, int block_n, int K, int group_size, int input_group_size, Element output_type,
                        Element scale_type, Element bias_type) {
  using Codes = CodesOf<kScaleK>;
  using Format = Blocks<Codes, R, B, C>;
  const auto out = output_tile<R, B, C>(M, N, experts);
  if (out.expert == kNobody) return store_zeros(out, N, y, output_type);
  if (out.expert > 0) {
    out.move(weight, N * K, AOEXT_WEIGHT);
    out.move(bias, N, bias_type);
  }
  const Format format{Codes(table), BlockScales<C, kUnit>(scale, scale_type, out, N, block_n, K, group_size),
                      RowScales<R, B, kStep>(input_scale, out, K, input_group_size)};
  float factor = format.codes.factor();
  if (global_scale != nullptr) factor *= global_scale[global_scales > 1 ? out.expert : 0];
  group_tile<Format, R, B, C, kScaleK, kTileK>(format, out, x, weight, N, K, [&](int64_t m, int64_t n, float value) {
    value *= factor;
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; of what all groups are
// multiples; its k-tile, of which K is one (of kBlock, where it is longer than a k-step). table, global_scale, input_scale and
// bias may be null.
#define BLOCKS_TILE(kernel, rows, R, B, C, group, tile_k)                                                                        \
  kernel(blocks_tile_m##rows##_g##group)(                                                                                        \
      void* y, const void* x, const void* weight, const int* offsets, int experts, const float* table, const void* scale,        \
      const float* global_scale, int global_scales, const float* input_scale, const void* bias, int64_t M, int64_t N,            \
      int block_n, int K, int group_size, int input_group_size, Element output_type, Element scale_type, Element bias_type) {    \
    aoext::xpu::blocks_tile<R, B, C, group, tile_k>(y, x, weight, {offsets, experts}, table, scale, global_scale, global_scales, \
                                                    input_scale, bias, M, N, block_n, K, group_size, input_group_size,           \
                                                    output_type, scale_type, bias_type);                                         \
  }
#define BLOCKS_TILES(group, tile_k, tile_k_of_many)                 \
  BLOCKS_TILE(AOEXT_KERNEL, 1, 1, 1, 1, group, tile_k)              \
  BLOCKS_TILE(AOEXT_KERNEL, 4, 4, 1, 1, group, tile_k)              \
  BLOCKS_TILE(AOEXT_KERNEL, 8, 8, 1, 1, group, tile_k)              \
  BLOCKS_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, group, tile_k_of_many) \
  BLOCKS_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, group, tile_k_of_many)

#ifdef AOEXT_DPAS
#define LONG_TILES(group) BLOCKS_TILES(group, 128, 64)
#else  // without a matrix engine, one k-step is code enough to unroll
#define LONG_TILES(group) BLOCKS_TILES(group, 32, 32)
#endif

#ifdef AOEXT_TABLE
BLOCKS_TILES(16, 32, 32)
LONG_TILES(32)
#else
BLOCKS_TILES(32, 32, 32)
LONG_TILES(128)
#endif
