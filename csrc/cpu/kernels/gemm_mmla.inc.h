// gemm by matrix instructions whose operands are two rows of 8 bytes and whose result is 2 by 2: Arm's bfmmla and smmla.
//
// A tile is 16 bytes, 8 bytes of k of each of two rows: output channels of w, or rows of x. A packed block of w has for each 8
// bytes of k a tile of each pair of its 32 channels; x is packed in panels of MR = 2 rows. The micro-kernel takes up to four
// panels of x by four pairs of channels, 8 loads for 16 instructions, or fewer panels by eight pairs, so that enough sums are
// under way. Sums lie as the instruction leaves them, four of each pair of rows and pair of channels, until all of K is
// multiplied.
//
// A format comes in as a loader, which makes operands of 4 bytes of two rows in turn:
//
//   static constexpr int kTiles           that it makes of 16 bytes: 4 bytes of the first row, of the second, of both again
//   static constexpr int64_t kMultiple    bytes up to a multiple of which rows are filled up with zeros
//   void operator()(uint8x16_t words, char* to) const         stores them, kStepBytes apart, in the order of k that x has
#pragma once

#include "cpu/kernels/bf16_operands.inc.h"
#include "cpu/kernels/blockwise.inc.h"

namespace aoext::cpu {
namespace {
namespace mmla {

constexpr int64_t kTile = sizeof(uint8x16_t), kTileRow = kTile / 2;  // bytes
constexpr int64_t kBlockRow = 512, kBlockPanel = 2 * kBlockRow;      // bytes of a row, or of a panel of x, in a block
constexpr int kPairs = kPanel / 2;                                   // of output channels
constexpr int64_t kStepBytes = kPairs * kTile;                       // of a block: 8 bytes of k
constexpr int64_t kSums = 4;                                         // of a tile

template <class Dot>
constexpr int64_t kOfRow = kTileRow / static_cast<int64_t>(sizeof(typename Dot::Operand));  // of a tile
template <class Dot>
constexpr int64_t kKC = kBlockRow / static_cast<int64_t>(sizeof(typename Dot::Operand));

// ---- micro-kernel, macro-kernel ------------------------------------------------------------------------

// Tiles [begin, end) of k of kRows panels of x, each limb behind the other, by kChannels pairs of channels.
template <class Dot, int kLimbs, int kRows, int kChannels>
inline void micro_kernel(const char* w, const char* x, int64_t begin, int64_t end, typename Dot::Sums (&sums)[kRows][kChannels]) {
  for (int64_t step = begin; step < end; ++step) {
    uint8x16_t wk[kChannels];
    for (int c = 0; c < kChannels; ++c) wk[c] = load<uint8x16_t>(w + step * kStepBytes + c * kTile);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int limb = 0; limb < kLimbs; ++limb) {
        const uint8x16_t xk = load<uint8x16_t>(x + (r * kLimbs + limb) * kBlockPanel + step * kTile);
        for (int c = 0; c < kChannels; ++c) sums[r][c] = Dot::multiply_add(sums[r][c], xk, wk[c]);
      }
  }
}

// Panels of x, as even as can be: body(Rows<panels>, Rows<pairs of channels>, first).
template <class Body>
inline void each_panels(int64_t M, const Body& body) {
  constexpr int64_t kMost = 4;
  const int64_t panels = (M + 1) / 2;
  for (int64_t first = 0, parts = (panels + kMost - 1) / kMost; parts > 0; --parts) {
    const int64_t count = (panels - first + parts - 1) / parts;
    switch (count) {
      case 1: body(Rows<1>(), Rows<8>(), first); break;
      case 2: body(Rows<2>(), Rows<8>(), first); break;
      case 3: body(Rows<3>(), Rows<4>(), first); break;
      default: body(Rows<4>(), Rows<4>(), first); break;
    }
    first += count;
  }
}

// Tiles [begin, begin + n) of k, whose segments are of so many tiles: `scales` brings the sums of each to those of y.
template <class Dot, int kLimbs, class Scales>
inline void macro_kernel(const void* w, const void* x, const Scales& scales, int64_t segment, int64_t M, int64_t begin, int64_t n,
                         void* acc) {
  const char *const block = static_cast<const char*>(w), *const panels = static_cast<const char*>(x);
  const int64_t first = begin / segment, begun = begin % segment;
  each_panels(M, [&](auto rows, auto channels, int64_t panel) AOEXT_INLINE {
    constexpr int kRows = decltype(rows)::count, kChannels = decltype(channels)::count;
    for (int pair = 0; pair < kPairs; pair += kChannels) {
      float* const to = static_cast<float*>(acc) + (panel * kPairs + pair) * kSums;
      int64_t s = first;
      for (int64_t k = 0, end = segment - begun; k < n; k = end, end += segment, ++s) {
        if (end > n) end = n;
        typename Dot::Sums sums[kRows][kChannels] = {};
        micro_kernel<Dot, kLimbs, kRows, kChannels>(block + pair * kTile, panels + panel * kLimbs * kBlockPanel, k, end, sums);
        scales.template apply<kRows, kChannels>(s, 2 * panel, 2 * pair, k > 0 || begun == 0, sums, to);
      }
    }
  });
}

// Rows of y of a pair of rows of x, out of tiles.
inline void order_sums(int64_t M, void* acc) {
  for (int64_t m = 0; m < M; m += 2) {
    float* const sums = static_cast<float*>(acc) + m * kPanel;
    uint64x2_t rows[2][kPanelVectors];
    for (int i = 0; i < kPanelVectors; ++i) {
      const uint64x2_t a = load<uint64x2_t>(sums + 2 * i * kSums), b = load<uint64x2_t>(sums + (2 * i + 1) * kSums);
      rows[0][i] = vzip1q_u64(a, b);
      rows[1][i] = vzip2q_u64(a, b);
    }
    memcpy(static_cast<void*>(sums), rows, sizeof rows);
  }
}

// ---- scales --------------------------------------------------------------------------------------------

inline F32 as_floats(F32 v) { return v; }
inline F32 as_floats(I32 v) { return (F32)vcvtq_f32_s32((int32x4_t)v); }

// Two numbers of output channels, or of rows of x, for the sums of a tile.
inline F32 of_channels(const float* p) { return (F32)vreinterpretq_f32_u64(vdupq_n_u64(load<uint64_t>(p))); }
inline F32 of_rows(const float* p) {
  const float32x4_t two = vreinterpretq_f32_u64(vdupq_n_u64(load<uint64_t>(p)));
  return (F32)vzip1q_f32(two, two);
}

// f(the sums in memory of row r and pair c, r, c) gives what they become.
template <int kRows, int kChannels, class F>
inline void each_tile(float* to, const F& f) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) {
      float* const sums = to + (r * kPairs + c) * kSums;
      store(sums, f(load<F32>(sums), r, c));
    }
}

struct NoScales {
  template <int kRows, int kChannels, class Sums>
  void apply(int64_t, int64_t, int64_t, bool, const Sums (&sums)[kRows][kChannels], float* to) const {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kChannels; ++c) {
        float* const at = to + (r * kPairs + c) * kSums;
        store(at, load<Sums>(at) + sums[r][c]);
      }
  }
};

// Scales of groups [groups, kPanel], and int4's zero points by sums of x.
template <bool kZeroPoints>
struct OfGroups {
  const float *scale, *zero_point = nullptr, *x_sums = nullptr;
  int64_t x_stride = 0;

  template <int kRows, int kChannels, class Sums>
  void apply(int64_t group, int64_t m, int64_t channel, bool starts, const Sums (&sums)[kRows][kChannels], float* to) const {
    const int64_t at = group * kPanel + channel;
    F32 scales[kChannels];
    for (int c = 0; c < kChannels; ++c) scales[c] = of_channels(scale + at + 2 * c);
    each_tile<kRows, kChannels>(to, [&](F32 sum, int r, int c) { return multiply_add(scales[c], as_floats(sums[r][c]), sum); });
    if (!kZeroPoints || !starts) return;
    F32 zero_points[kChannels], x_sum[kRows];
    for (int c = 0; c < kChannels; ++c) zero_points[c] = of_channels(zero_point + at + 2 * c);
    for (int r = 0; r < kRows; ++r) x_sum[r] = of_rows(x_sums + group * x_stride + m + 2 * r);
    each_tile<kRows, kChannels>(to, [&](F32 sum, int r, int c) { return multiply_add(zero_points[c], x_sum[r], sum); });
  }
};

// ---- macro-kernels by what meets the sums ----------------------------------------------------------------

template <class Dot, int kLimbs>
void macro_kernel_alone(const void* w, int, const void* x, int64_t M, int64_t K, void* acc) {
  const int64_t tiles = K / kOfRow<Dot>;
  macro_kernel<Dot, kLimbs>(w, x, NoScales(), tiles, M, 0, tiles, acc);
}

template <class Dot, int kLimbs>
void macro_kernel_int4(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                       int64_t begin, int64_t n, void* acc) {
  const OfGroups</*kZeroPoints=*/true> scales{first.scale, first.zero_point, x_sums, x_stride};
  macro_kernel<Dot, kLimbs>(w, x, scales, first.group_size / kOfRow<Dot>, M, begin / kOfRow<Dot>, n / kOfRow<Dot>, acc);
}

// A loader makes tiles of kStep elements at a time, a multiple of which groups are; the last group, or the only one, is filled
// up.
template <class Dot, int kLimbs, int64_t kStep>
void macro_kernel_blockwise(const void* w, int, const void* x, int64_t M, const BlockwiseRows& first, int64_t begin, int64_t n,
                            void* acc) {
  const auto tiles = [](int64_t elements) { return (elements + kStep - 1) / kStep * kStep / kOfRow<Dot>; };
  const OfGroups</*kZeroPoints=*/false> scales{first.scale_columns};
  macro_kernel<Dot, kLimbs>(w, x, scales, tiles(first.group_size), M, begin / kOfRow<Dot>, tiles(n), acc);
}

// ---- packing -------------------------------------------------------------------------------------------

// Pairs of channels of a block: each(first row, second row, pair); the last row stands for those that don't exist. What is next
// is fetched.
template <class Each>
inline void each_pair(const BlockRows& block, const Each& each) {
  for (int pair = 0; pair < kPairs; ++pair) {
    int64_t rows[2];
    for (int i = 0; i < 2; ++i) {
      rows[i] = 2 * pair + i < block.count ? 2 * pair + i : block.count - 1;
      for (int64_t at = 0; at < block.next_bytes; at += kLine) fetch_weights(block.next + rows[i] * block.next_stride + at);
    }
    each(rows[0], rows[1], pair);
  }
}

// A block of n bytes of each row; zeros follow up to a multiple of Loader::kMultiple.
template <class Loader>
inline void pack_tiles(const char* source, const BlockRows& block, int64_t n, void* out, const Loader& loader) {
  each_pair(block, [&](int64_t first, int64_t second, int pair) AOEXT_INLINE {
    const char *const a = source + first * block.stride, *const b = source + second * block.stride;
    char* to = static_cast<char*>(out) + pair * kTile;
    const auto make = [&](uint32x4_t of_a, uint32x4_t of_b) AOEXT_INLINE {
      const uint32x4_t in_turn[] = {vzip1q_u32(of_a, of_b), vzip2q_u32(of_a, of_b)};
      for (const uint32x4_t words : in_turn) {
        loader(vreinterpretq_u8_u32(words), to);
        to += Loader::kTiles * kStepBytes;
      }
    };
    int64_t at = 0;
    for (; at + kTile <= n; at += kTile) make(load<uint32x4_t>(a + at), load<uint32x4_t>(b + at));
    for (; at < n || at % Loader::kMultiple != 0; at += kTile) {
      uint32x4_t rest[2] = {};
      if (at < n) {
        memcpy(&rest[0], a + at, static_cast<size_t>(n - at < kTile ? n - at : kTile));
        memcpy(&rest[1], b + at, static_cast<size_t>(n - at < kTile ? n - at : kTile));
      }
      make(rest[0], rest[1]);
    }
  });
}

// Two rows of operands, `bytes` of each, as tiles so far apart: as they lie, or of eight 16-bit ones the even, then the odd ones.
template <bool kEights>
inline void interleave(const void* first, const void* second, int64_t bytes, char* to, int64_t apart) {
  const char *const a = static_cast<const char*>(first), *const b = static_cast<const char*>(second);
  for (int64_t at = 0; at < bytes; at += kTile, to += 2 * apart) {
    const uint16x8_t va = load<uint16x8_t>(a + at), vb = load<uint16x8_t>(b + at);
    if constexpr (kEights) {
      store(to, vuzp1q_u16(va, vb));
      store(to + apart, vuzp2q_u16(va, vb));
    } else {
      store(to, vzip1q_u64(vreinterpretq_u64_u16(va), vreinterpretq_u64_u16(vb)));
      store(to + apart, vzip2q_u64(vreinterpretq_u64_u16(va), vreinterpretq_u64_u16(vb)));
    }
  }
}

inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// A panel of x: RowLoader's operands (gemm.inc.h).
template <class RowLoader, bool kEights>
void pack_x(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t*) {
  using Operand = typename RowLoader::Operand;
  alignas(kLine) Operand operands[2][kBlockRow / sizeof(Operand)];
  for (int64_t r = 0; r < rows; ++r) RowLoader::load(from, static_cast<const char*>(source) + r * stride, n, operands[r]);
  if (rows < 2) memset(operands[1], 0, sizeof operands[1]);
  const int64_t bytes = padded(n) * static_cast<int64_t>(sizeof(Operand));
  interleave<kEights>(operands[0], operands[1], bytes, static_cast<char*>(out), kTile);
}

// A block whose rows become operands one by one, in the first cache: load(row, out).
template <class Operand, class Load>
inline void pack_operands(const BlockRows& block, int64_t n, void* out, const Load& load) {
  alignas(kLine) Operand operands[2][kBlockRow / sizeof(Operand)];
  each_pair(block, [&](int64_t first, int64_t second, int pair) {
    load(first, operands[0]);
    load(second, operands[1]);
    const int64_t bytes = padded(n) * static_cast<int64_t>(sizeof(Operand));
    interleave</*kEights=*/false>(operands[0], operands[1], bytes, static_cast<char*>(out) + pair * kTile, kStepBytes);
  });
}

template <class RowLoader>
void pack_blockwise(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  using Operand = typename RowLoader::Operand;
  pack_operands<Operand>(rows, n, out, [&](int64_t r, Operand* to) { RowLoader::load(first, r, begin, n, to); });
}

template <class Dot, int kLimbs>
constexpr GemmShape shape_of(decltype(GemmShape::pack_x) pack, decltype(GemmShape::accepts) accepts) {
  return {.operand_bytes = sizeof(typename Dot::Operand),
          .NC = kPanel,
          .KC = kKC<Dot>,
          .MR = 2,
          .limbs = kLimbs,
          .fetch_next_panel = true,
          .pack_x = pack,
          .accepts = accepts,
          .order_sums = order_sums};
}

}  // namespace mmla
}  // namespace
}  // namespace aoext::cpu
