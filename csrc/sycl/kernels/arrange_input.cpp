// x [M, K] of 16-bit values in the order in which int4_tile's operations of many rows want it (int4_input.h).
//
// A sub-group moves a step of a block of rows: 8 · 32 values, 64 contiguous bytes of each row in, 512 out. Rows past M
// repeat the last one. M · K values are read and written once, little beside the weights: at M = 32 and N = 4096, 3%.
#include "int4_input.h"

AOEXT_KERNEL(arrange_input)(uint16_t* arranged, const void* x, int64_t M, int K) {
  using namespace aoext::xpu;
  constexpr int R = kArrangedBlock;
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int step = static_cast<int>(item.get_global_id(1)) / kLanes;
  if (step >= K / kStep) return;  // whole sub-groups
  const int64_t first_row = static_cast<int64_t>(item.get_group(0)) * R;
  const int64_t from = sycl::min(first_row, M - 1);
  const int last = static_cast<int>(sycl::min(M - 1 - from, int64_t{R - 1}));
  int rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r) rows[r] = sycl::min(r, last);
  Vector<short, R> a[2];
  load_input<kBf16, R>(static_cast<const char*>(x) + 2 * (from * K + step * kStep + lane % 8 * 4), rows, 2 * K, lane, a);
  uint16_t* const out = arranged + (first_row * K + step * kStep * R);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int r = 0; r < R; ++r) out[(j * R + r) * kLanes + lane] = static_cast<uint16_t>(a[j][r]);
  }
}
