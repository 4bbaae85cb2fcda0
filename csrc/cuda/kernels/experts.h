// How many tiles of rows a grouped product has, as far as the host knows: the rows of all experts, not those of one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/properties.h"

namespace aoext::cuda {

// At most: each expert, and the rows behind the last, may have a tile that is not full.
inline int64_t most_row_tiles(int64_t rows, int64_t experts, int block_m) { return rows / block_m + std::min(rows, experts + 1); }

// Experts with rows, where each row has an expert by chance.
inline double experts_hit(int64_t rows, int64_t experts) {
  const auto E = static_cast<double>(experts);
  return -E * std::expm1(static_cast<double>(rows) * std::log1p(-1 / E));
}

// Experts with rows have one tile at least, and of many rows half a tile more than these fill.
inline double expected_row_tiles(int64_t rows, int64_t experts, int block_m) {
  const double hit = experts_hit(rows, experts);
  return std::max(hit, static_cast<double>(rows) / block_m + hit / 2);
}

// choose(device) of one of so many products that run at once, each on its share of the GPU; the time is that of all.
template <class Choose>
auto choose_of_tiles(double tiles, const Device& device, Choose&& choose) {
  const int at_once = std::clamp(static_cast<int>(std::ceil(tiles)), 1, device.multiprocessors);
  Device share = device;
  share.multiprocessors = device.multiprocessors / at_once;
  share.bandwidth = device.bandwidth / at_once;
  auto choice = choose(share);
  choice.microseconds *= std::max(tiles / at_once, 1.0);
  return choice;
}

}  // namespace aoext::cuda
