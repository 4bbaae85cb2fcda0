// y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], for few rows, w int8 or float8 in the plain layout.
//
//   x bf16, fp16, fp32   weight-only: no row_scale; scale and bias bf16, fp16 or fp32
//   x of w's type        int8 sums in int32, float8 in float32; without a scale y is the int32 sum
//
// K is a multiple of kStep, and x and w start at multiples of 16 bytes. The loop is split_k.h's. In a k-step:
//
//   w   a lane reads 32 bytes of its own row, dwords d = 0 to 7; a k-block is two cache lines
//   x   lane l reads x[2l] and x[2l + 1] of each row, so that a row is one coalesced load
//
// int8 × int8 is one matrix operation on the bytes as they are stored. Otherwise w becomes 16-bit floats, for two
// operations j = 0, 1: dword d of j is the bytes j and j + 2 of w's dword d, so that lane l of x is x[2l + j], its
// own low or high half.
//
// float8 × float8 is multiplied as bf16. So is fp16 × e5m2, with x as two bf16 limbs: as fp16 the small codes would be
// subnormal, which the matrix engine may take for zero.
//
// benchmarks/xpu.md has what was tried and not kept.
#include "float8.h"
#include "scaled_sum.h"
#include "split_k.h"

namespace aoext::xpu {
namespace {

// The type of the matrix operation's operands.
constexpr Element product_type(Element x, Element w) {
  if (x == kInt8) return kInt8;
  if (x == kFp32) return kFp32;
  return x == kFp16 && w != kE5m2 ? kFp16 : kBf16;
}

// The type to which w is decoded: the b of a float32 product is bf16.
constexpr Element decoded_type(Element product) { return product == kFp16 ? kFp16 : kBf16; }

// What lane l loads of a row of x in a k-step: x[2l] and x[2l + 1].
template <Element kX>
using Loaded =
    std::conditional_t<kX == kFp32, Vector<float, 2>, std::conditional_t<kX == kBf16 || kX == kFp16, uint32_t, uint16_t>>;

// Two fp16 as the sums of two bf16 limbs each: 8 + 8 significant bits hold fp16's 11.
struct Limbs {
  uint32_t first, rest;  // two bf16 each
};

inline Limbs limbs_of_fp16(uint32_t pair) {
  // A rest of 0 would turn an infinite weight into NaN. Instead the rest is then a number of x's sign, too small to change
  // a sum, and Inf where x is.
  const auto rest = [](float value) {
    const float first = sycl::bit_cast<float>(sycl::bit_cast<uint32_t>(value) & 0xFFFF0000u);
    return value == first ? value * 0x1p-100f : value - first;
  };
  const auto values = sycl::bit_cast<Halves>(pair);
  const float low = values[0], high = values[1];
  return {static_cast<uint32_t>(packed_bf16(low, high)), static_cast<uint32_t>(packed_bf16(rest(low), rest(high)))};
}

// acc += x · w over one k-step.
template <Element kX, Element kW, int R, int B, int C>
struct Step {
  static constexpr Element kProduct = product_type(kX, kW);
  static constexpr bool kSplit = kX == kFp16 && kProduct == kBf16;
  using T = Tile<kProduct, R>;
  using A = typename T::A;

  template <class Acc>
  static void add(Acc& acc, const Dwords (&w)[C], const Loaded<kX>* x, const int (&rows)[B][R], unsigned pitch) {
    Dwords b[2][C];
    if constexpr (kProduct != kInt8) {
#pragma unroll
      for (int i = 0; i < 8 * C; ++i) {
        b[0][i / 8][i % 8] = decoded_pair<kW, decoded_type(kProduct), 0>(w[i / 8][i % 8]);
        b[1][i / 8][i % 8] = decoded_pair<kW, decoded_type(kProduct), 1>(w[i / 8][i % 8]);
      }
    }
#pragma unroll
    for (int i = 0; i < B; ++i) {
      Loaded<kX> values[R];
#pragma unroll
      for (int r = 0; r < R; ++r) values[r] = x[static_cast<unsigned>(rows[i][r]) * pitch];
      if constexpr (kProduct == kInt8) {
        A a;
#pragma unroll
        for (int r = 0; r < R; ++r) set<R>(a, r, static_cast<short>(values[r]));
#pragma unroll
        for (int c = 0; c < C; ++c) T::multiply(acc[i][c], a, w[c]);
      } else {
        A a[2], rest[2];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if constexpr (kX == kFp32) {
            set<R>(a[0], r, values[r][0]);
            set<R>(a[1], r, values[r][1]);
          } else if constexpr (kSplit) {
            const Limbs limbs = limbs_of_fp16(values[r]);
            set_halves(a, r, limbs.first);
            set_halves(rest, r, limbs.rest);
          } else if constexpr (kX == kBf16 || kX == kFp16) {
            set_halves(a, r, values[r]);
          } else {
            const uint32_t codes = values[r];
            set_halves(a, r, decoded_pair<kX, kBf16, 0>((codes | codes << 8) & 0x00FF00FFu));
          }
        }
#pragma unroll
        for (int i2 = 0; i2 < 2 * C; ++i2) {
          T::multiply(acc[i][i2 / 2], a[i2 % 2], b[i2 % 2][i2 / 2]);
          if constexpr (kSplit) T::multiply(acc[i][i2 / 2], rest[i2 % 2], b[i2 % 2][i2 / 2]);
        }
      }
    }
  }

  static void set_halves(A (&a)[2], int r, uint32_t pair) {
    set<R>(a[0], r, static_cast<short>(pair));
    set<R>(a[1], r, static_cast<short>(pair >> 16));
  }
};

// The k-tile of kernels for several rows: without a matrix engine, one k-step is code enough to unroll.
#ifdef AOEXT_DPAS
constexpr int kTileKOfRows = kBlock;
#else
constexpr int kTileKOfRows = kStep;
#endif

// kTileK: the k-tile, which is unrolled.
template <Element kX, Element kW, int R, int B, int C, int kTileK>
inline void rowwise_tile(const void* x, const void* weight, const Scaling& scaling, int64_t M, int64_t N, int K) {
  using Work = Step<kX, kW, R, B, C>;
  const auto accumulate = [&](auto& acc, const auto& out, int k) {
    const char* w[C];
#pragma unroll
    for (int c = 0; c < C; ++c) w[c] = static_cast<const char*>(weight) + out.columns[c] * K + k;
    const auto* own = static_cast<const Loaded<kX>*>(x) + (out.first_row * K + k) / 2 + out.lane;
    const auto steps = [&](auto count) {
      constexpr int kSteps = decltype(count)::value;
      Dwords dwords[kSteps][C];
#pragma unroll
      for (int i = 0; i < kSteps * C * 2; ++i) {
        const auto quarter = reinterpret_cast<const Vector<int, 4>*>(w[i / 2 % C])[i / 2 / C * 2 + i % 2];
#pragma unroll
        for (int d = 0; d < 4; ++d) dwords[i / 2 / C][i / 2 % C][i % 2 * 4 + d] = quarter[d];
      }
#pragma unroll
      for (int t = 0; t < kSteps; ++t) Work::add(acc, dwords[t], own + t * kLanes, out.rows, static_cast<unsigned>(K) / 2);
    };
    if (kTileK == kStep || K - k >= kTileK) {
      steps(std::integral_constant<int, kTileK / kStep>());
    } else {
      for (int left = K - k; left > 0; left -= kStep) {
        steps(std::integral_constant<int, 1>());
#pragma unroll
        for (int c = 0; c < C; ++c) w[c] += kStep;
        own += kLanes;
      }
    }
  };
  constexpr float kOne = Work::kProduct == kInt8 ? 1.0f : kDecodedFactor<kW, decoded_type(Work::kProduct)>;
  constexpr float kFactor = kX == kW ? kOne * kOne : kOne;
  split_k<typename Work::T, R, B, C, kTileK>(M, N, K, accumulate, [&](int64_t m, int64_t n, auto sum) {
    if constexpr (kX == kInt8) {
      if (scaling.column_scale == nullptr) {
        static_cast<int*>(scaling.y)[m * N + n] = sum;
        return;
      }
    }
    store_scaled(scaling, N, m, n, static_cast<float>(sum) * kFactor);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; its k-tile. An image
// has the kernels for one type of w, AOEXT_WEIGHT, and one of x, AOEXT_INPUT.
#define ROWWISE_TILE(kernel, rows, R, B, C, tile_k)                                                                             \
  kernel(rowwise_tile_m##rows)(void* y, const void* x, const void* weight, const float* row_scale, const void* scale,           \
                               const void* bias, int64_t M, int64_t N, int K, int output_type, int scale_type, int bias_type) { \
    aoext::xpu::rowwise_tile<aoext::xpu::AOEXT_INPUT, aoext::xpu::AOEXT_WEIGHT, R, B, C, aoext::xpu::tile_k>(                   \
        x, weight, {y, row_scale, scale, bias, output_type, scale_type, bias_type}, M, N, K);                                   \
  }

ROWWISE_TILE(AOEXT_KERNEL, 1, 1, 1, 1, kBlock)
ROWWISE_TILE(AOEXT_KERNEL, 4, 4, 1, 1, kTileKOfRows)
ROWWISE_TILE(AOEXT_KERNEL, 8, 8, 1, 1, kTileKOfRows)
#ifdef AOEXT_MATRIX
ROWWISE_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, kTileKOfRows)
ROWWISE_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, kTileKOfRows)
#endif
