// How x becomes the operands of int4_tile.cpp. Operation j of a k-step multiplies, in lane l, the value at
// k = 4 (l mod 8) + 2 j + l / 8 of each row.
//
// For few rows each lane loads four neighbours of a row and selects two. From kArrangedRows on, that would cost more
// than all else, so arrange_input does it once for all columns. It writes [row block][k-step][operation j][row][lane],
// with kArrangedBlock rows in a row block.
#pragma once

#include "tile.h"

namespace aoext::xpu {

// The input operands of the two operations of a k-step. `x` points to the lane's four neighbours in the first row; those
// of row r lie rows[r] · row_bytes further.
template <Element kType, int R>
inline void load_input(const char* x, const int (&rows)[R], int row_bytes, int lane, typename Tile<kType, R>::A (&a)[2]) {
  using Value = std::conditional_t<kType == Element::fp32, float, short>;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const auto v = *reinterpret_cast<const Vector<Value, 4>*>(x + static_cast<unsigned>(rows[r] * row_bytes));
    set<R>(a[0], r, lane < 8 ? v[0] : v[1]);
    set<R>(a[1], r, lane < 8 ? v[2] : v[3]);
  }
}

// The same from the R · 32 values that arrange_input wrote for this k-step.
template <int R>
inline void load_arranged(const uint16_t* x, int lane, Vector<short, R> (&a)[2]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) a[j] = load_rows<R>(x + j * R * kLanes, lane);
}

}  // namespace aoext::xpu
