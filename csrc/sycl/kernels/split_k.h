// Split-K within a work-group: the loop of the small-M kernels for y[M, N] = x[M, K] · w[N, K]ᵀ.
//
// A work-group computes a tile of R·B rows by 16·C columns of y. Its S sub-groups split K: sub-group s multiplies the
// k-blocks s, s + S, s + 2S, … of kBlock each. Their partial sums are added in local memory, always in the same order.
// A lane computes one column of every 16, so it reads its own row of w, a 64-byte line at a time; the loads of x are
// coalesced over the lanes of a sub-group.
//
// Rows past the tile's last and columns past N read the last row or column instead, and are not stored. The tiles of a product
// with experts are those of experts.h.
#pragma once

#include "experts.h"
#include "tile.h"

namespace aoext::xpu {

// The tile of y that a work-group computes, as one lane sees it.
template <int R, int B, int C>
struct OutputTile : TileRows {
  int64_t first_column;
  int64_t arranged_row;  // where arrange_input puts the first row
  int rows[B][R];        // relative to first_row, none past the last
  int64_t columns[C];    // this lane's, of w and y, none past N
  int lane;
};

template <int R, int B, int C>
inline OutputTile<R, B, C> output_tile(int64_t M, int64_t N, const Experts& experts) {
  const auto item = this_item();
  const int64_t index = item.get_group(0);
  OutputTile<R, B, C> tile{rows_of_tile(index, R * B, M, experts)};
  tile.arranged_row = index * (R * B);
  tile.first_column = static_cast<int64_t>(item.get_group(1)) * (kLanes * C);
  tile.lane = this_sub_group().get_local_linear_id();
  const int last_row = static_cast<int>(tile.end_row - tile.first_row) - 1;
#pragma unroll
  for (int i = 0; i < R * B; ++i) tile.rows[i / R][i % R] = sycl::min(i, last_row);
#pragma unroll
  for (int c = 0; c < C; ++c) tile.columns[c] = sycl::min(tile.first_column + c * kLanes + tile.lane, N - 1);
  return tile;
}

// For rows that belong to nobody; none where there are no rows.
template <int R, int B, int C>
inline void store_zeros(const OutputTile<R, B, C>& tile, int64_t N, void* y, Element type) {
  const auto item = this_item();
  const int width = item.get_local_range(1);
  for (int i = item.get_local_linear_id(); i < R * B * C * kLanes; i += width) {
    const int64_t m = tile.first_row + i / (C * kLanes), n = tile.first_column + i % (C * kLanes);
    if (m < tile.end_row && n < N) store_float(y, m * N + n, type, 0);
  }
}

// accumulate(acc, tile, k) adds the products of the k-tile [k, k + kTileK) to acc, an Acc[B][C].
// store(m, n, sum) takes the sum over all of K for one element of y.
template <class Tile, int R, int B, int C, int kTileK, class Accumulate, class Store>
inline void split_k(const OutputTile<R, B, C>& tile, int64_t N, int K, const Accumulate& accumulate, const Store& store) {
  using Acc = typename Tile::Acc;
  using Value = decltype(get<R>(Acc(), 0));
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int sub_groups = sg.get_group_linear_range(), s = sg.get_group_linear_id(), lane = sg.get_local_linear_id();

  Acc acc[B][C];
#pragma unroll
  for (int i = 0; i < B * C; ++i) acc[i / C][i % C] = Acc(0);
  for (int block = s * kBlock; block < K; block += sub_groups * kBlock) {
    if constexpr (kTileK == kBlock) {
      accumulate(acc, tile, block);
    } else {
      for (int k = block; k < sycl::min(block + kBlock, K); k += kTileK) accumulate(acc, tile, k);
    }
  }

  Value* const partial = local_memory<Value, kMaxSubGroups * R * kLanes>();
#pragma unroll
  for (int b = 0; b < B; ++b) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int r = 0; r < R; ++r) partial[(s * R + r) * kLanes + lane] = get<R>(acc[b][c], r);
      sycl::group_barrier(item.get_group());
      for (int i = item.get_local_linear_id(); i < R * kLanes; i += sub_groups * kLanes) {
        Value sum = 0;
        for (int other = 0; other < sub_groups; ++other) sum += partial[other * R * kLanes + i];
        const int64_t m = tile.first_row + b * R + i / kLanes, n = tile.first_column + c * kLanes + i % kLanes;
        if (m < tile.end_row && n < N) store(m, n, sum);
      }
      sycl::group_barrier(item.get_group());
    }
  }
}

}  // namespace aoext::xpu
