// How 8-bit products by wgmma are cut into tiles, for the launchers of rowwise_wgmma.cuh and scaled_wgmma.cuh.
#pragma once

#include <algorithm>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"
#include "cuda/kernels/tile_scheduler.h"
#include "cuda/kernels/wgmma_config.h"

namespace aoext::cuda::wgmma {

inline TileScheduler schedule_of(int64_t M, int64_t N, int64_t K, const WgmmaConfig& c) {
  return schedule_tiles(ceil_div(N, c.block_n) * ceil_div(M, c.block_m), ceil_div(K, kLine), c.blocks, c.cluster, 0);
}

// Rows of x that are copied at once: all of a tile, unless there are few tiles and the last of them is not full.
inline int copy_rows(int64_t M, int block_m) {
  int rows = block_m;
  while (rows > 32 && M % rows != 0 && M < 8 * block_m) rows /= 2;
  while (rows > 8 && M <= rows / 2) rows /= 2;
  return rows;
}

// ---- The choice: a model of the time. Turns of tiles, each of k-tiles that take as long as the tensor cores and the copies, or
// as memory or L2 needs to deliver them; beside it, reading w once. Neighbouring multiprocessors share their bandwidth in pairs,
// so that a turn that uses the second of some pairs takes as long as one that uses all. ----

struct TileProblem {
  int64_t M, N, K;
  bool int8;
  int w_line;  // bytes of an output channel in a k-tile
};

// Among the `known` tiles that `has(tile, rows)`; `shares(tile)`: blocks may share one along K.
template <class Tiles, class Has, class Shares>
Choice<WgmmaConfig> choose_tiles(const TileProblem& p, const Device& device, const Tiles& known, Has&& has, Shares&& shares) {
  const RowwiseWgmmaFit& fit = fits_of(device).rowwise_wgmma;
  const int sms = device.multiprocessors;
  const double from_memory = fit.memory * bandwidth_ratio(device);
  const int64_t stages = ceil_div(p.K, kLine);
  const double reading = static_cast<double>(p.N) * p.K * p.w_line / kLine / from_memory;
  Choice<WgmmaConfig> best;
  for (const RowwiseWgmmaFit::Tile& cost : known) {
    const bool x_is_left = is_x_left(cost.height);
    const int64_t beside = ceil_div(p.M, cost.block_m);  // tiles of the same rows of w
    const bool w_again = cost.block_m < fit.narrow && beside > cost.block_m / 32;
    if (w_again) continue;
    // The lowest of those that are as good: more blocks read.
    for (int rows = cost.height / 32 * 16 + 16; rows <= cost.height; rows += 16) {
      if (!has(cost, rows)) continue;
      if (rows < kPairN && !x_is_left && (p.M > fit.few_rows || cost.block_m > fit.narrow)) continue;
      if (x_is_left && (p.M > fit.x_left_rows || p.M <= fit.narrow / 2))
        continue;  // of few most of the left operand would be nothing
      const int64_t tiles = ceil_div(p.N, rows) * beside;
      const double step = p.int8 ? cost.int8 : cost.float8;
      const double outputs = static_cast<double>(cost.height) * cost.block_m;
      const double w_bytes = rows * p.w_line, x_bytes = std::min<int64_t>(cost.block_m, p.M) * kLine;
      // So many blocks at once, each with so many stages.
      const auto round = [&](int64_t blocks, int64_t parts) {
        const double pairs = sms / 2, in_pair = blocks > pairs ? 2 : 1;
        const double memory = w_bytes / beside * in_pair * pairs / from_memory,
                     caches = blocks * (w_bytes + x_bytes) / fit.caches;
        return parts * std::max({step, memory, caches}) + fit.tile + fit.output * outputs;
      };
      const auto consider = [&](int cluster, int64_t blocks) {
        const WgmmaConfig config{cost.block_m, cluster, 0, static_cast<int>(blocks), rows, x_is_left};
        const TileScheduler s = schedule_of(p.M, p.N, p.K, config);
        if (!schedule_fits(s, config.blocks)) return;
        double multiplying = s.whole_tiles / blocks * round(blocks, stages);
        if (s.whole_tiles % blocks != 0) multiplying += round(s.whole_tiles % blocks, stages);
        if (shared_tiles(s) > 0) multiplying += round(shared_tiles(s) * cluster, ceil_div(stages, cluster)) + fit.cluster;
        best.consider(config, std::max(multiplying, reading) + fit.both * std::min(multiplying, reading));
      };
      consider(1, even_blocks(tiles, 1, sms));
      if (!shares(cost)) continue;
      consider(2, even_blocks(tiles, 2, sms));
      consider(2, std::min<int64_t>(2 * tiles, sms / 2 * 2));
    }
  }
  return best;
}

// The same of experts, among tiles with swap_ab that `has(block_n, block_m)`: for as many tiles as experts.h expects, in turns,
// beside reading the weights of the experts that are hit.
template <class Config, class Tiles, class Has>
Choice<Config> choose_expert_tiles(const TileProblem& p, int64_t experts, const Device& device, const Tiles& known, Has&& has) {
  const RowwiseWgmmaFit& fit = fits_of(device).rowwise_wgmma;
  const int sms = device.multiprocessors;
  const double from_memory = fit.memory * bandwidth_ratio(device), hit = experts_hit(p.M, experts);
  const double reading = hit * static_cast<double>(p.N) * p.K * p.w_line / kLine / from_memory;
  Choice<Config> best;
  for (const RowwiseWgmmaFit::Tile& cost : known) {
    if (is_x_left(cost.height) || !has(cost.height, cost.block_m)) continue;
    const double along_n = ceil_div(p.N, cost.height), tiles = expected_row_tiles(p.M, experts, cost.block_m) * along_n;
    const double at_once = std::min<double>(tiles, sms), bytes = (cost.height + cost.block_m) * kLine;
    const double step = std::max(p.int8 ? cost.int8 : cost.float8, at_once * bytes / fit.caches);
    const double tile = ceil_div(p.K, kLine) * step + fit.tile + fit.output * cost.height * cost.block_m;
    const double multiplying = std::ceil(tiles / sms) * tile;
    const auto most = static_cast<int64_t>(along_n) * most_row_tiles(p.M, experts, cost.block_m);
    Config config{};
    config.block_m = cost.block_m, config.block_n = cost.height, config.cluster = 1;
    config.blocks = static_cast<int>(std::min<int64_t>(most, sms));
    best.consider(config, std::max(multiplying, reading) + fit.both * std::min(multiplying, reading));
  }
  return best;
}

// Whether a launch counts experts and tiles.
inline bool takes_experts(int64_t M, int64_t N, int64_t experts) {
  return experts <= kMostExperts && ceil_div(N, 64) * most_row_tiles(M, experts, 32) < int64_t{1} << 31;
}

}  // namespace aoext::cuda::wgmma
