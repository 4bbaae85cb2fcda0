// Reorders x [M, K] of 16-bit values into the operands of int4_tile's kernels for many rows (int4_input.h).
//
// A sub-group reorders one k-step of a block of 8 rows: it reads 64 contiguous bytes of each row and writes 512. Rows past
// a tile's last repeat it. M · K values are read and written once, 3% of the weight's bytes at M = 32 and N = 4096.
#include "experts.h"
#include "int4_input.h"

// tile_rows: of the kernel that reads it.
AOEXT_KERNEL(arrange_input)(uint16_t* arranged, const void* x, const int* offsets, int experts, int64_t M, int K, int tile_rows) {
  using namespace aoext::xpu;
  constexpr int R = kArrangedBlock;
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int step = static_cast<int>(item.get_global_id(1)) / kLanes;
  if (step >= K / kStep) return;  // whole sub-groups
  const unsigned block = item.get_group(0), blocks = static_cast<unsigned>(tile_rows) / R, tile = block / blocks;
  const TileRows own = rows_of_tile(tile, tile_rows, M, {offsets, experts});
  if (own.expert == kNobody) return;
  const int64_t from = sycl::min(own.first_row + (block - tile * blocks) * R, own.end_row - 1);
  const int last = static_cast<int>(sycl::min(own.end_row - 1 - from, int64_t{R - 1}));
  int rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r) rows[r] = sycl::min(r, last);
  Vector<short, R> a[2];
  load_input<Element::bf16, R>(static_cast<const char*>(x) + 2 * (from * K + step * kStep + lane % 8 * 4), rows, 2 * K, lane, a);
  uint16_t* const out = arranged + (int64_t{block} * R * K + step * kStep * R);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int r = 0; r < R; ++r) out[(j * R + r) * kLanes + lane] = static_cast<uint16_t>(a[j][r]);
  }
}
