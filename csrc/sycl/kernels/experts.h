// Whose rows a work-group computes: of a product whose rows are sorted by expert, each expert with a weight of its own, or of one
// with one weight for all rows.
//
// Where the rows of each expert end stands in device memory. A tile has rows of one expert, and the tiles of all experts follow
// each other: a sub-group counts them to find its own, 16 experts at a time. Ends that fall, or lie outside x, leave experts
// without rows. Rows behind the last end belong to nobody: their tiles come last, and their results are zeros. The host launches
// as many tiles as there may be (row_tiles in tiles.h), and those that are left have no rows.
//
// Finding a tile takes 67 instructions for 16 experts, 540 for 128: a seventh of what a sub-group of int4_tile multiplies with at
// K = 2048, where memory takes longer than both. One weight for all rows takes 22.
#pragma once

#include "kernel.h"
#include "numeric.h"

namespace aoext::xpu {

struct Experts {
  const int* ends;  // [count]: offsets, or null where one weight is for all rows
  int count;
};

constexpr int kNobody = -1;

// Rows [first_row, end_row) of x and y, and whose weight they meet: an expert's, or kNobody's. One weight for all is expert 0's.
struct TileRows {
  int64_t first_row, end_row;
  int expert;

  // Moves an operand that has so many elements for each expert to this one's. Null stays null.
  template <class T>
  void move(const T*& operand, int64_t elements, Element type) const {
    if (operand == nullptr) return;
    operand = reinterpret_cast<const T*>(reinterpret_cast<const char*>(operand) + expert * elements * bits_of(type) / 8);
  }
};

// Those of a tile of at most `rows`; the same in all lanes.
inline TileRows rows_of_tile(int64_t tile, int rows, int64_t M, const Experts& experts) {
  if (experts.ends == nullptr) return {tile * rows, sycl::min((tile + 1) * rows, M), 0};
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id(), most = static_cast<int>(sycl::min(M, int64_t{0x7FFFFFFF}));
  int end = 0, tiles = 0;  // of the experts before
  for (int first = 0; first < experts.count; first += kLanes) {
    const int e = first + lane;
    const int own = e < experts.count ? sycl::min(experts.ends[e], most) : 0;
    const int own_end = sycl::max(end, sycl::inclusive_scan_over_group(sg, own, sycl::maximum<int>()));
    const int left = sycl::shift_group_right(sg, own_end, 1), own_begin = lane == 0 ? end : left;
    const int own_tiles = (own_end - own_begin + rows - 1) / rows;
    const int through = tiles + sycl::inclusive_scan_over_group(sg, own_tiles, sycl::plus<int>());
    const int found = sycl::reduce_over_group(sg, through > tile ? lane : kLanes, sycl::minimum<int>());
    if (found < kLanes) {
      const int before = lane_value(through - own_tiles, found), begin = lane_value(own_begin, found);
      const int64_t from = begin + (tile - before) * rows;
      return {from, sycl::min(from + rows, int64_t{lane_value(own_end, found)}), first + found};
    }
    end = lane_value(own_end, kLanes - 1), tiles = lane_value(through, kLanes - 1);
  }
  const int64_t from = end + (tile - tiles) * rows;
  return {sycl::min(from, M), sycl::min(from + rows, M), kNobody};
}

}  // namespace aoext::xpu
