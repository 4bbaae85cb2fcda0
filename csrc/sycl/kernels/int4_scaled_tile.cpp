// y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] + bias[N] for few rows, x int8 or e4m3, w = q · scale + zero_point by groups of
// K.
//
// Memory is walked as by int4_tile.cpp. In a k-step lane l reads the bytes of x at k = 4 (l mod 8) to 4 (l mod 8) + 3 of each
// row, and takes those at l / 8 and l / 8 + 2.
//
//   x int8   one operation: dword d of the operand w is 16 · q of the low nibbles of w's dword d, dword d + 4 of the high ones.
//            The sums of a k-tile are exact in int32, and so are those of x, which zero points are multiplied by.
//   x e4m3   multiplied as bf16 by 24 + q, as in int4_tile.cpp
//
// AOEXT_INPUT is the type of x.
#include "float8.h"
#include "group_tile.h"
#include "int4_weight.h"

namespace aoext::xpu {
namespace {

template <Element kX, int R>
struct ScaledInt4 {
  static constexpr bool kExact = kX == Element::int8;
  static constexpr Element kProduct = kExact ? Element::int8 : Element::bf16;
  static constexpr int kOperations = kExact ? 1 : 2, kLimbs = 1, kBits = 4;
  static constexpr bool kZeroPoints = true, kRowScales = false;
  // What sums are to be multiplied by.
  static constexpr float kFactor = kExact ? 1.0f : kDecodedFactor<kX, Element::bf16>;

  const void *scales, *zero_points;
  int64_t N;
  Element scale_type;
  GroupOf<kStep> group_of;

  void decode(const char* codes, Dwords (&b)[kOperations]) const {
    const auto packed = *reinterpret_cast<const Vector<uint32_t, 4>*>(codes);
    if constexpr (kExact) {
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        b[0][d] = static_cast<int>((packed[d] << 4) & 0xF0F0F0F0u);
        b[0][d + 4] = static_cast<int>(packed[d] & 0xF0F0F0F0u);
      }
    } else {
      unpack<Element::bf16>(packed, b);
    }
  }

  template <class Output>
  void input(const void* x, const Output& out, int K, int k, int t, int i,
             typename Tile<kProduct, R>::A (&a)[1][kOperations]) const {
    const char* const own = static_cast<const char*>(x) + (out.first_row * K + k + t * kStep + out.lane % 8 * 4);
    uint32_t four[R];
#pragma unroll
    for (int r = 0; r < R; ++r)
      four[r] = *reinterpret_cast<const uint32_t*>(own + static_cast<unsigned>(out.rows[i][r]) * static_cast<unsigned>(K));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint32_t two = (out.lane < 8 ? four[r] : four[r] >> 8) & 0x00FF00FFu;
      if constexpr (kExact) {
        set<R>(a[0][0], r, static_cast<short>(two | two >> 8));
      } else {
        const int pair = decoded_pair<kX, Element::bf16, 0>(two);
        set<R>(a[0][0], r, static_cast<short>(pair));
        set<R>(a[0][1], r, static_cast<short>(pair >> 16));
      }
    }
  }

  Scale scale(int64_t column, int /*c*/, int k) const {
    const int64_t at = int64_t{group_of(k)} * N + column;
    const float s = load_float(scales, at, scale_type), z = load_float(zero_points, at, scale_type);
    return kExact ? Scale{s * 0.0625f, z} : Scale{s, z - kOffset<Element::bf16> * s};
  }
};

template <int R, int B, int C, int kScaleK, int kTileK>
inline void int4_scaled_tile(void* y, const void* x, const void* weight, const Experts& experts, const float* row_scale,
                             const void* scale, const void* zero_point, const void* bias, int64_t M, int64_t N, int K,
                             int group_size, Element output_type, Element scale_type, Element bias_type) {
  using Format = ScaledInt4<AOEXT_INPUT, R>;
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
    value *= row_scale[m] * Format::kFactor;
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// As in int4_tile.cpp.
#define INT4_SCALED_TILE(kernel, rows, R, B, C, group, tile_k)                                                                 \
  kernel(int4_scaled_tile_m##rows##_g##group)(void* y, const void* x, const void* weight, const int* offsets, int experts,     \
                                              const float* row_scale, const void* scale, const void* zero_point,               \
                                              const void* bias, int64_t M, int64_t N, int K, int group_size,                   \
                                              Element output_type, Element scale_type, Element bias_type) {                    \
    aoext::xpu::int4_scaled_tile<R, B, C, group, tile_k>(y, x, weight, {offsets, experts}, row_scale, scale, zero_point, bias, \
                                                         M, N, K, group_size, output_type, scale_type, bias_type);             \
  }

INT4_SCALED_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 128, 128)
INT4_SCALED_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 128, 128)
INT4_SCALED_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 128, 128)
INT4_SCALED_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 128, 64)
INT4_SCALED_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 128, 64)
INT4_SCALED_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 32, 32)
INT4_SCALED_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 32, 32)
INT4_SCALED_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 32, 32)
INT4_SCALED_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 32, 32)
INT4_SCALED_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 32, 32)
