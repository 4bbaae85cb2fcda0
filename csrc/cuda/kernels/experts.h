// How many tiles of rows a grouped product has, as far as the host knows: the rows of all experts, not those of one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace aoext::cuda {

// At most: each expert, and the rows behind the last, may have a tile that is not full.
inline int64_t most_row_tiles(int64_t rows, int64_t experts, int block_m) { return rows / block_m + std::min(rows, experts + 1); }

// Where each row has an expert by chance. Experts with rows have one tile at least, and of many rows half a tile more than these
// fill.
inline double expected_row_tiles(int64_t rows, int64_t experts, int block_m) {
  const auto T = static_cast<double>(rows), E = static_cast<double>(experts);
  const double with_rows = -E * std::expm1(T * std::log1p(-1 / E));
  return std::max(with_rows, T / block_m + with_rows / 2);
}

}  // namespace aoext::cuda
