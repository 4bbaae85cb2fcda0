// y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale[M] · scale[N] + bias[N], for few rows, w int8 or float8 in the plain layout.
//
//   x bf16, fp16, fp32   weight-only: no row_scale; scale and bias bf16, fp16 or fp32
//   x of w's type        int8 sums in int32, float8 in float32; without a scale y is the int32 sum
//
// K is a multiple of kStep, and x and w start at multiples of 16 bytes. The loop is split_k.h's, the operands are
// eight_bit.h's; a k-block of w is two cache lines.
//
// benchmarks/xpu.md has what was tried and not kept.
#include "eight_bit.h"
#include "scaled_sum.h"
#include "split_k.h"

namespace aoext::xpu {
namespace {

// acc += x · w over one k-step.
template <class Format, int R, int B, int C, class Acc>
inline void add_step(Acc& acc, const Dwords (&w)[C], const auto* x, const int (&rows)[B][R], unsigned pitch) {
  using T = Tile<Format::kProduct, R>;
  constexpr int kOperations = Format::kOperations;
  Dwords b[kOperations][C];
#pragma unroll
  for (int i = 0; i < 8 * C; ++i) {
    b[0][i / 8][i % 8] = Format::template decoded<0>(w[i / 8][i % 8]);
    if constexpr (kOperations == 2) b[1][i / 8][i % 8] = Format::template decoded<1>(w[i / 8][i % 8]);
  }
#pragma unroll
  for (int i = 0; i < B; ++i) {
    typename T::A a[Format::kLimbs][kOperations];
    Format::template input<R>(x, rows[i], pitch, a);
#pragma unroll
    for (int n = 0; n < kOperations * C; ++n) {
#pragma unroll
      for (int limb = 0; limb < Format::kLimbs; ++limb)
        T::multiply(acc[i][n / kOperations], a[limb][n % kOperations], b[n % kOperations][n / kOperations]);
    }
  }
}

// The k-tile of kernels for several rows: without a matrix engine, one k-step is code enough to unroll.
#ifdef AOEXT_DPAS
constexpr int kTileKOfRows = kBlock;
#else
constexpr int kTileKOfRows = kStep;
#endif

// kTileK: the k-tile, which is unrolled.
template <Element kX, Element kW, int R, int B, int C, int kTileK>
inline void rowwise_tile(const void* x, const void* weight, const Experts& experts, Scaling scaling, int64_t M, int64_t N,
                         int K) {
  using Format = EightBit<kX, kW>;
  const auto tile = output_tile<R, B, C>(M, N, experts);
  if (tile.expert == kNobody) return store_zeros(tile, N, scaling.y, scaling.output_type);
  if (tile.expert > 0) {
    tile.move(weight, N * K, kW);
    tile.move(scaling.column_scale, N, scaling.scale_type);
    tile.move(scaling.bias, N, scaling.bias_type);
  }
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
      for (int t = 0; t < kSteps; ++t)
        add_step<Format, R, B, C>(acc, dwords[t], own + t * kLanes, out.rows, static_cast<unsigned>(K) / 2);
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
  split_k<Tile<Format::kProduct, R>, R, B, C, kTileK>(tile, N, K, accumulate, [&](int64_t m, int64_t n, auto sum) {
    if constexpr (kX == Element::int8) {
      if (scaling.column_scale == nullptr) {
        static_cast<int*>(scaling.y)[m * N + n] = sum;
        return;
      }
    }
    store_scaled(scaling, N, m, n, static_cast<float>(sum) * Format::kFactor);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; its k-tile. An image
// has the kernels for one type of w, AOEXT_WEIGHT, and one of x, AOEXT_INPUT.
#define ROWWISE_TILE(kernel, rows, R, B, C, tile_k)                                                                      \
  kernel(rowwise_tile_m##rows)(void* y, const void* x, const void* weight, const int* offsets, int experts,              \
                               const float* row_scale, const void* scale, const void* bias, int64_t M, int64_t N, int K, \
                               Element output_type, Element scale_type, Element bias_type) {                             \
    aoext::xpu::rowwise_tile<aoext::AOEXT_INPUT, aoext::AOEXT_WEIGHT, R, B, C, aoext::xpu::tile_k>(                      \
        x, weight, {offsets, experts}, {y, row_scale, scale, bias, output_type, scale_type, bias_type}, M, N, K);        \
  }

ROWWISE_TILE(AOEXT_KERNEL, 1, 1, 1, 1, kBlock)
ROWWISE_TILE(AOEXT_KERNEL, 4, 4, 1, 1, kTileKOfRows)
ROWWISE_TILE(AOEXT_KERNEL, 8, 8, 1, 1, kTileKOfRows)
#ifdef AOEXT_MATRIX
ROWWISE_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, kTileKOfRows)
ROWWISE_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, kTileKOfRows)
#endif
