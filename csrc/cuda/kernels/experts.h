// How many tiles of rows a grouped product has, as far as the host knows: the rows of all experts, not those of one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/properties.h"

namespace aoext::cuda {

// At most: each expert, and the rows behind the last, may have a tile that is not full.
inline int64_t most_row_tiles(int64_t rows, int64_t experts, int block_m) { return rows / block_m + std::min(rows, experts + 1); }

// Times as long as the model for one weight says tiles of 8-bit weights take that are those of experts, beside finding them: on
// an H200 138 µs for 114, 61 for 48, 15 for 9.5.
constexpr double kTilesOfExperts = 1.2;

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

// choose(device) of one of so many products that run at once, each on its share of the GPU; the time is that of all. Where there
// may be more than that many, the last of them leave most of the GPU idle, so that larger shares, of which fewer run at once, may
// be better.
template <class Choose>
auto choose_of_tiles(double tiles, int64_t most, const Device& device, Choose&& choose) {
  constexpr int kLargest = 4;    // times as large
  constexpr double kLast = .25;  // of a turn, that the last ones take longer
  const int sms = device.multiprocessors, least = sms / std::clamp(static_cast<int>(std::ceil(tiles)), 1, sms);
  decltype(choose(device)) best;
  for (int share = least; share <= std::min(kLargest * least, sms); share *= 2) {
    const double at_once = static_cast<double>(sms) / share;
    Device own = device;
    own.multiprocessors = share;
    own.bandwidth = device.bandwidth / std::clamp(std::ceil(tiles), 1.0, at_once);
    auto choice = choose(own);
    choice.microseconds *= static_cast<double>(most) <= at_once ? 1.0 : tiles / at_once + kLast;
    if (choice.microseconds < best.microseconds) best = choice;
  }
  return best;
}

}  // namespace aoext::cuda
