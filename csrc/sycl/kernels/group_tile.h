// y[M, N] = x[M, K] · w[N, K]ᵀ for few rows, where w has scales by groups of K: split_k.h's loop over what a format loads.
//
// A format is a loader: what makes operands of the matrix operation (tile.h) of a weight's codes and of x, and finds scales.
//
//   kProduct, kOperations   the type of an operation's operands, and how many operations a k-step takes
//   kLimbs                  operands whose sum is x
//   kBits                   of a code, where those of a row lie side by side; 0: the format knows where they lie
//   kZeroPoints             whether w = code · scale + zero, so that the sums of x over a group count
//   kRowScales              whether x may have scales by groups too, each of a row; has_row_scales() says so then
//   decode(codes, b)        the operands of w for a k-step, from what a lane reads of its own row
//   decode(c, k, b)         the same where kBits is 0
//   input(…, i, a)          those of x for the rows of block i
//   scale(column, c, k)     of the weights of a lane's column c from k on, with the zero
//   row_scale(k, i)         those of the rows of x, that of row r of block i in lane (i · R + r) mod kLanes
//
// The order of k within an operation is the format's own. For each scale, the products of codes are summed by the operation,
// exactly where both operands are int8, then scaled and added in float32.
#pragma once

#include "split_k.h"

namespace aoext::xpu {

// k / group_size without a division in the loop, which would take forty instructions. Both are multiples of kUnit, and
// below kMaxTileDepth a product by the rounded-up reciprocal is exact.
template <int kUnit>
class GroupOf {
 public:
  explicit GroupOf(int group_size) : reciprocal_(~0u / static_cast<unsigned>(group_size / kUnit) + 1) {}

  int operator()(int k) const {
    const unsigned unit = static_cast<unsigned>(k) / kUnit;
    return static_cast<int>(reciprocal_ == 0 ? unit : sycl::mul_hi(unit, reciprocal_));  // 0: a group is one unit
  }

 private:
  unsigned reciprocal_;
};

struct Scale {
  float scale, zero;
};

// Scales of x, float32 [M, ceil(K / group_size)], of groups that are multiples of kUnit: lane l has row l's.
template <int R, int B, int kUnit>
struct RowScales {
  static constexpr int kCount = (R * B + kLanes - 1) / kLanes;

  const float* rows[kCount];
  GroupOf<kUnit> group_of;

  template <class Output>
  RowScales(const float* data, const Output& out, int K, int group_size) : group_of(group_size) {
    const int64_t groups = (static_cast<unsigned>(K) + group_size - 1u) / static_cast<unsigned>(group_size);
#pragma unroll
    for (int i = 0; i < kCount; ++i) rows[i] = data + sycl::min(out.first_row + i * kLanes + out.lane, out.end_row - 1) * groups;
  }

  // Those of the rows of block i.
  float scale(int k, int i) const { return rows[i * R / kLanes][group_of(k)]; }
};

// The sums of a tile kernel, whatever its operation adds up.
template <int R>
struct FloatSums {
  using Acc = Vector<float, R>;
};

// kScaleK: all groups are multiples of it. kTileK: the k-tile, which is unrolled; K is a multiple of it. One divides the other.
template <class Format, int R, int B, int C, int kScaleK, int kTileK, class Store>
inline void group_tile(const Format& format, const OutputTile<R, B, C>& output, const void* x, const void* weight, int64_t N,
                       int K, const Store& store) {
  using T = Tile<Format::kProduct, R>;
  constexpr int kSteps = kTileK / kStep, kOperations = Format::kOperations;
  constexpr int kScales = kScaleK < kTileK ? kTileK / kScaleK : 1, kOfAScale = kSteps * kOperations / kScales;
  static_assert(kScaleK % kTileK == 0 || kTileK % kScaleK == 0);
  const T tile(this_sub_group().get_local_linear_id(), K);
  const auto accumulate = [&](auto& acc, const auto& out, int k) {
    Dwords b[C][kSteps][kOperations];
    Scale scales[kScales][C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if constexpr (Format::kBits == 0) {
#pragma unroll
        for (int t = 0; t < kSteps; ++t) format.decode(c, k + t * kStep, b[c][t]);
      } else {
        const char* const w = static_cast<const char*>(weight) + (out.columns[c] * K + k) * Format::kBits / 8;
#pragma unroll
        for (int t = 0; t < kSteps; ++t) format.decode(w + t * kStep * Format::kBits / 8, b[c][t]);
      }
#pragma unroll
      for (int s = 0; s < kScales; ++s) scales[s][c] = format.scale(out.columns[c], c, k + s * kScaleK);
    }
    const auto add = [&](auto& sum, const auto& products, const auto& sums, const Scale(&scale)[C], const auto& row_scale) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float product = row_scale(r, static_cast<float>(get<R>(products[c], r)));
          float others = get<R>(sum[c], r);
          if constexpr (Format::kZeroPoints)
            others = sycl::fma(row_scale(r, static_cast<float>(get<R>(sums, r))), scale[c].zero, others);
          set<R>(sum[c], r, sycl::fma(product, scale[c].scale, others));
        }
      }
    };
#pragma unroll
    for (int i = 0; i < B; ++i) {
      typename T::Acc sums(0), products[C];
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        typename T::A a[Format::kLimbs][kOperations];
        format.input(x, out, K, k, t, i, a);
#pragma unroll
        for (int j = 0; j < kOperations; ++j) {
          const int operation = t * kOperations + j;
          if (operation % kOfAScale == 0) {
            sums = typename T::Acc(0);
#pragma unroll
            for (int c = 0; c < C; ++c) products[c] = typename T::Acc(0);
          }
          if constexpr (Format::kZeroPoints) tile.add_row_sums(sums, a[0][j]);
#pragma unroll
          for (int c = 0; c < C; ++c) {
#pragma unroll
            for (int limb = 0; limb < Format::kLimbs; ++limb) tile.multiply(products[c], a[limb][j], b[c][t][j]);
          }
          if ((operation + 1) % kOfAScale == 0) {
            const int s = operation / kOfAScale;
            if constexpr (Format::kZeroPoints) sums = tile.row_sums(sums);
            const auto unscaled = [](int /*r*/, float value) { return value; };
            if constexpr (!Format::kRowScales) {
              add(acc[i], products, sums, scales[s], unscaled);
            } else if (!format.has_row_scales()) {
              add(acc[i], products, sums, scales[s], unscaled);
            } else {
              const float rows = format.row_scale(k + s * kScaleK, i);
              add(acc[i], products, sums, scales[s],
                  [&](int r, float value) { return value * lane_value(rows, i * R % kLanes + r); });
            }
          }
        }
      }
    }
  };
  split_k<FloatSums<R>, R, B, C, kTileK>(output, N, K, accumulate, store);
}

}  // namespace aoext::xpu
