// How the small-M kernels walk a product y[M, N] = x[M, K] · w[N, K]ᵀ.
//
// A work-group takes R·B rows of y by 16·C columns. Its sub-groups share K: sub-group s takes every S-th
// block of kBlock, all of them add up in local memory, always in the same order. A lane is a column, so it
// reads its own row of w, a 64-byte line at a time, and the lanes of a sub-group read x together.
//
// Rows past M and columns past N read the last one instead and are not stored.
#pragma once

#include "tile.h"

namespace aoext::xpu {

// Which part of y a lane works on.
template <int R, int B, int C>
struct Part {
  int64_t first_row, first_column;
  int rows[B][R];      // from first_row on
  int64_t columns[C];  // of w and y
  int lane;
};

// accumulate(acc, part, k): adds the products of kPiece values from k on; acc is Acc[B][C].
// store(m, n, value): one element of the sum.
template <class Tile, int R, int B, int C, int kPiece, class Accumulate, class Store>
inline void split_k(int64_t M, int64_t N, int K, const Accumulate& accumulate, const Store& store) {
  using Acc = typename Tile::Acc;
  using Value = decltype(get<R>(Acc(), 0));
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int sub_groups = sg.get_group_linear_range(), s = sg.get_group_linear_id(), lane = sg.get_local_linear_id();

  Part<R, B, C> part;
  part.first_row = static_cast<int64_t>(item.get_group(0)) * (R * B);
  part.first_column = static_cast<int64_t>(item.get_group(1)) * (kLanes * C);
  part.lane = lane;
  const int last_row = static_cast<int>(sycl::min(M - part.first_row, int64_t{R * B})) - 1;
#pragma unroll
  for (int i = 0; i < R * B; ++i) part.rows[i / R][i % R] = sycl::min(i, last_row);
#pragma unroll
  for (int c = 0; c < C; ++c) part.columns[c] = sycl::min(part.first_column + c * kLanes + lane, N - 1);

  Acc acc[B][C];
#pragma unroll
  for (int i = 0; i < B * C; ++i) acc[i / C][i % C] = Acc(0);
  for (int block = s * kBlock; block < K; block += sub_groups * kBlock) {
    if constexpr (kPiece == kBlock) {
      accumulate(acc, part, block);
    } else {
      for (int k = block; k < sycl::min(block + kBlock, K); k += kPiece) accumulate(acc, part, k);
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
        const int64_t m = part.first_row + b * R + i / kLanes, n = part.first_column + c * kLanes + i % kLanes;
        if (m < M && n < N) store(m, n, sum);
      }
      sycl::group_barrier(item.get_group());
    }
  }
}

}  // namespace aoext::xpu
