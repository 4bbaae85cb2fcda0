// Weight-only int4 for few rows: y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point by groups of K.
//
// Memory. A sub-group computes 16 (32) columns, one (two) a lane. A lane reads its own row of w, 16 bytes a k-step and
// a 64-byte line in four k-steps; each weight is read once for all rows of the work-group's tile. x is read in its plain
// layout: for each row and k-step, the lanes load 64 contiguous bytes. The sub-groups of a work-group split K (split_k.h).
//
// Operands. A dword of w holds k = 8 d + 0 … 7 as nibbles. Nibbles j and j + 4 are 16 bits apart, so one shift, one mask
// and one exclusive or turn them into a dword of the matrix operation: two 16-bit floats 24 + q. The order of k within an
// operation is free as long as x has the same: with dwords d = 0 … 3 of j, then of j + 1, operation j / 2 multiplies x at
// k = 4 (l mod 8) + j + l / 8 from lane l, which lane l selects from four neighbours that it loads.
//
// Scales. q · scale + zero = (24 + q) · scale + (zero − 24 · scale). For each group, the products of 24 + q and the sums of
// x (products by ones, on the matrix engine too) are scaled and added in float32. The offset is 24, and not the 136 that
// an unshifted mantissa would give, so that little cancels. The result is exact but for float32 sums and y's one rounding.
//
// benchmarks/xpu.md has what was tried and not kept, and the times that these instructions predict.
// AOEXT_INPUT is the type of x and y: bf16, fp16 or, without AOEXT_MATRIX, fp32.
#include "group_tile.h"
#include "int4_input.h"
#include "int4_weight.h"

namespace aoext::xpu {
namespace {

template <Element kType, int R, int B>
struct Int4 {
  static constexpr Element kProduct = kType;
  static constexpr int kOperations = 2, kLimbs = 1, kBits = 4;
  static constexpr bool kZeroPoints = true, kRowScales = false;
  static constexpr int kBytes = kType == Element::fp32 ? 4 : 2;  // of an element of x

  const void *scales, *zero_points;
  int64_t N;
  Element scale_type;
  GroupOf<kStep> group_of;

  void decode(const char* codes, Dwords (&b)[2]) const { unpack<kType>(*reinterpret_cast<const Vector<uint32_t, 4>*>(codes), b); }

  template <class Output>
  void input(const void* x, const Output& out, int K, int k, int t, int i, typename Tile<kType, R>::A (&a)[1][2]) const {
    if constexpr (R * B >= kArrangedRows) {
      const uint16_t* const arranged = static_cast<const uint16_t*>(x) + out.arranged_row * K + k * R;
      load_arranged<R>(arranged + (i * K + t * kStep) * R, out.lane, a[0]);
    } else {
      const char* const own = static_cast<const char*>(x) + (out.first_row * K + k + out.lane % 8 * 4) * kBytes;
      load_input<kType, R>(own + t * kStep * kBytes, out.rows[i], K * kBytes, out.lane, a[0]);
    }
  }

  Scale scale(int64_t column, int /*c*/, int k) const {
    const int64_t at = int64_t{group_of(k)} * N + column;
    const float s = load_float(scales, at, scale_type);
    return {s, load_float(zero_points, at, scale_type) - kOffset<kType> * s};
  }
};

template <Element kType, int R, int B, int C, int kScaleK, int kTileK>
inline void int4_tile(void* y, const void* x, const void* weight, const Experts& experts, const void* scale,
                      const void* zero_point, const void* bias, int64_t M, int64_t N, int K, int group_size, Element output_type,
                      Element scale_type, Element bias_type) {
  using Format = Int4<kType, R, B>;
  const auto out = output_tile<R, B, C>(M, N, experts);
  if (out.expert == kNobody) return store_zeros(out, N, y, output_type);
  const GroupOf<kStep> group_of(group_size);
  if (out.expert > 0) {
    const int64_t scales = group_of(K) * N;
    out.move(weight, N * K, Element::int4);
    out.move(scale, scales, scale_type);
    out.move(zero_point, scales, scale_type);
    out.move(bias, N, bias_type);
  }
  const Format format{scale, zero_point, N, scale_type, group_of};
  group_tile<Format, R, B, C, kScaleK, kTileK>(format, out, x, weight, N, K, [&](int64_t m, int64_t n, float value) {
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; the group sizes
// that it serves, multiples of 128 or 32; the k-tile that it unpacks at a time, as long as the registers allow.
#define INT4_TILE(kernel, rows, R, B, C, group, tile_k)                                                                          \
  kernel(int4_tile_m##rows##_g##group)(void* y, const void* x, const void* weight, const int* offsets, int experts,              \
                                       const void* scale, const void* zero_point, const void* bias, int64_t M, int64_t N, int K, \
                                       int group_size, Element output_type, Element scale_type, Element bias_type) {             \
    aoext::xpu::int4_tile<aoext::AOEXT_INPUT, R, B, C, group, tile_k>(y, x, weight, {offsets, experts}, scale, zero_point, bias, \
                                                                      M, N, K, group_size, output_type, scale_type, bias_type);  \
  }

#ifdef AOEXT_MATRIX
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 128, 64)
INT4_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 128, 64)
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 32, 32)
#else  // without a matrix engine operands are floats, and a register of Xe-HPG holds half a sub-group of them
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 128, (aoext::AOEXT_INPUT == aoext::Element::fp32 ? 32 : 64))
INT4_TILE(AOEXT_KERNEL_256, 4, 4, 1, 1, 128, 32)
INT4_TILE(AOEXT_KERNEL_256, 8, 8, 1, 1, 128, 32)
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 4, 4, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 8, 8, 1, 1, 32, 32)
#endif
