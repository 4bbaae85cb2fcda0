// Launching weight_only_wgmma.cuh, and the choice of its configurations, for weights of any format. A problem is one of int4.h or
// rowwise.h: what is read of it here both have.
#pragma once

#include <algorithm>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/tensor_map.h"
#include "cuda/kernels/sm90a/weight_only_wgmma.cuh"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda::wgmma {

// What a multiprocessor has, less what one block costs.
template <class Scheduler>
constexpr int kSharedMemory = (227 << 10) - int(sizeof(WorkOf<Scheduler>));

template <class Problem>
TileScheduler schedule(const Problem& p, int stage, const WgmmaConfig& c) {
  const int64_t tiles = ceil_div(p.N, c.block_n) * ceil_div(p.M, c.block_m);
  return schedule_tiles(tiles, ceil_div(p.K, stage), c.blocks, c.cluster, c.stream_k_blocks);
}

// Rows of x in one copy: all of a tile, unless there are so few that leaving out those beyond M gains more than several copies
// cost.
inline int copy_rows(int64_t M, int block_m) {
  constexpr int kPiece = 32;
  const bool saves = ceil_div(M, kPiece) * kPiece < ceil_div(M, block_m) * block_m;
  return M <= 96 && saves ? kPiece : block_m;
}

inline size_t tile_bytes(const WgmmaConfig& c) { return sizeof(float) * c.block_n * c.block_m; }

template <class Problem>
size_t workspace_bytes(const Problem& p, int stage, const WgmmaConfig& c) {
  const TileScheduler s = schedule(p, stage, c);
  return partial_bytes(s, tile_bytes(c)) + counter_bytes(s);
}

// Two splits for BLOCK_N = 64, and for 128 where the sums of four warpgroups fit into registers. w has as many stages as its
// format wants, x as many as fit beside them.
template <class Weights, class Output, class Scheduler, int kBlockM>
struct Rings {
  static constexpr int kWarpgroupSplits = Weights::kBlockN == 64 || (Weights::kBlockN == kPairN && kBlockM <= 64) ? 2 : 1;
  static constexpr int kW = kBlockM * Weights::kBlockN <= 64 * kPairN ? Weights::kNarrowStages : Weights::kWideStages;
  using Empty = Layout<Weights, Output, kBlockM, 0, kW, kWarpgroupSplits>;
  static constexpr int kX = std::min(8, (kSharedMemory<Scheduler> - Empty::kBytes) / (Empty::kXBytes + 8 + kWarpgroupSplits * 8));
};

// The tensor map of x, in 64 k by so many rows.
template <class Problem>
TensorMap x_map(const Problem& p, int rows) {
  return {map_type(p.type), p.x, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.M}, {p.K * 2}, {kStep, rows}};
}

template <class T, int kBlockM, class Weights, class Epilogue, class Problem>
cudaError_t launch_weight_only(const Problem& p, const Weights& weights, const typename Weights::Maps& maps,
                               const Epilogue& epilogue, const WgmmaConfig& config, void* workspace, cudaStream_t stream) {
  using Output = typename Epilogue::Output;
  using R = Rings<Weights, Output, TileScheduler, kBlockM>;
  using L = Layout<Weights, Output, kBlockM, R::kX, R::kW, R::kWarpgroupSplits>;
  const auto kernel = weight_only<T, Weights, Epilogue, TileScheduler, kBlockM, R::kX, R::kW, R::kWarpgroupSplits>;

  Params<Weights, Epilogue, TileScheduler> a{weights, epilogue};
  a.tiles = {static_cast<int>(ceil_div(p.N, Weights::kBlockN)), static_cast<int>(ceil_div(p.M, kBlockM))};
  a.schedule = schedule(p, Weights::kStage, config);
  a.copy_rows = copy_rows(p.M, kBlockM);
  if (config.cluster > Weights::kMostCluster || !schedule_fits(a.schedule, config.blocks)) return cudaErrorInvalidValue;
  set_workspace(a.schedule, workspace, tile_bytes(config));

  const TensorMap x = x_map(p, a.copy_rows);
  if (!x.valid) return cudaErrorNotSupported;

  Grid grid{static_cast<unsigned>(config.blocks),
            threads(R::kWarpgroupSplits, Weights::kBlockN),
            L::kBytes,
            stream,
            static_cast<unsigned>(config.cluster),
            Overlap::after_ours};
  if (a.schedule.stream_k_blocks > 0) {
    const Grid one{1, 128, 0, stream, 1, Overlap::after_ours};
    const cudaError_t error = launch(clear_counters<unsigned>, one, a.schedule.counters, shared_tiles(a.schedule));
    if (error != cudaSuccess) return error;
    grid.overlap = Overlap::always;
  }
  return launch(kernel, grid, x.map, maps, a);
}

// A grouped product, of which `p` also says the experts and where their rows end.
template <class T, int kBlockM, class Weights, class Epilogue, class Problem>
cudaError_t launch_grouped(const Problem& p, const Weights& weights, const typename Weights::Maps& maps, const Epilogue& epilogue,
                           int blocks, cudaStream_t stream) {
  using Output = typename Epilogue::Output;
  using R = Rings<Weights, Output, GroupedScheduler, kBlockM>;
  using L = Layout<Weights, Output, kBlockM, R::kX, R::kW, R::kWarpgroupSplits>;
  const auto kernel = weight_only<T, Weights, Epilogue, GroupedScheduler, kBlockM, R::kX, R::kW, R::kWarpgroupSplits>;

  Params<Weights, Epilogue, GroupedScheduler> a{weights, epilogue};
  a.tiles.along_n = static_cast<int>(ceil_div(p.N, Weights::kBlockN));
  a.schedule = {p.ends, static_cast<int>(p.experts), static_cast<int>(p.M), a.tiles.along_n,
                static_cast<int>(ceil_div(p.K, Weights::kStage))};
  a.copy_rows = copy_rows(ceil_div(p.M, p.experts), kBlockM);
  const TensorMap x = x_map(p, a.copy_rows);
  if (!x.valid) return cudaErrorNotSupported;
  const Grid grid{
      static_cast<unsigned>(blocks), threads(R::kWarpgroupSplits, Weights::kBlockN), L::kBytes, stream, 1, Overlap::after_ours};
  return launch(kernel, grid, x.map, maps, a);
}

// The tensor map of w: a line a k-tile and output channel.
template <class Problem>
TensorMap lines_map(const Problem& p, int64_t row_bytes, int rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {row_bytes, p.N}, {row_bytes}, {kLine, rows}};
}

// The same of experts.
template <class Problem>
TensorMap expert_lines_map(const Problem& p, int64_t row_bytes, int rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight,        CU_TENSOR_MAP_SWIZZLE_128B, {row_bytes, p.N, p.experts},
          {row_bytes, row_bytes * p.N},  {kLine, rows, 1}};
}

// Tiles that a format has kernels for: output channels by rows of x.
template <int block_n, int block_m>
struct TileShape {
  static constexpr int kBlockN = block_n, kBlockM = block_m;
  static bool is_of(const WgmmaConfig& c) { return c.block_n == kBlockN && c.block_m == kBlockM; }
};

template <int block_n, int... block_m>
struct TilesOf {
  // Calls `run` with the tile that a configuration names, if it is one of these. Whether it is.
  template <class Run>
  static bool run(const WgmmaConfig& c, Run&& run) {
    return ((TileShape<block_n, block_m>::is_of(c) && (run(TileShape<block_n, block_m>()), true)) || ...);
  }
};

template <class... Tiles>
struct TileShapes {};

// f(TileShape{}) of each.
template <int block_n, int... block_m, class F>
void for_each_shape(TilesOf<block_n, block_m...>, F&& f) {
  (f(TileShape<block_n, block_m>()), ...);
}
template <class... Tiles, class F>
void for_each_shape(TileShapes<Tiles...>, F&& f) {
  (for_each_shape(Tiles(), f), ...);
}

template <class... Tiles, class Run>
cudaError_t with_tile(TileShapes<Tiles...>, const WgmmaConfig& c, Run&& run) {
  cudaError_t error = cudaErrorInvalidValue;
  (Tiles::run(c, [&](auto shape) { error = run(shape); }) || ...);
  return error;
}

// Whether there is a kernel for a configuration, and a schedule of its blocks.
template <class Tiles, class Problem>
bool fits(Tiles shapes, const Problem& p, int stage, int most_cluster, const WgmmaConfig& c) {
  const auto found = [](auto) { return cudaSuccess; };
  return with_tile(shapes, c, found) == cudaSuccess && !c.x_is_left && c.cluster >= 1 && c.cluster <= most_cluster &&
         c.stream_k_blocks >= 0 && c.blocks > c.stream_k_blocks && schedule_fits(schedule(p, stage, c), c.blocks);
}

// ---- The choice ----

constexpr int kBlockMs[] = {32, 64, 96, 128, 192, 256};

// For experts. All tiles are whole, in turns (tile_scheduler.h).

template <class Problem>
int64_t most_tiles(const Problem& p, int block_n, int block_m) {
  return ceil_div(p.N, block_n) * most_row_tiles(p.M, p.experts, block_m);
}

template <class Config>
Config tile_config(int block_n, int block_m, int64_t blocks) {
  Config c{};
  c.block_n = block_n, c.block_m = block_m, c.blocks = static_cast<int>(blocks);
  if constexpr (requires { c.cluster; }) c.cluster = 1;
  return c;
}

// By the model of the product for one weight, for as many tiles as experts.h expects.
template <class Config, class Shapes, class Problem>
Choice<Config> choose_for_experts(Shapes shapes, const Problem& p, int stage, const WeightOnlyWgmmaFit& model, int sms) {
  const auto k_steps = static_cast<double>(ceil_div(p.K, stage) * (stage / kStep));
  Choice<Config> best;
  for_each_shape(shapes, [&](auto shape) {
    const WeightOnlyWgmmaFit::Tiles& cost = shape.kBlockN == kPairN ? model.rows_128 : model.rows_64;
    const auto step = cost.steps[std::find(std::begin(kBlockMs), std::end(kBlockMs), shape.kBlockM) - std::begin(kBlockMs)];
    const double row_tiles = expected_row_tiles(p.M, p.experts, shape.kBlockM);
    const double turns = std::ceil(row_tiles * static_cast<double>(ceil_div(p.N, shape.kBlockN)) / sms);
    const int64_t blocks = std::min<int64_t>(most_tiles(p, shape.kBlockN, shape.kBlockM), sms);
    best.consider(tile_config<Config>(shape.kBlockN, shape.kBlockM, blocks), turns * (k_steps * step + cost.tile));
  });
  return best;
}

// Whether there is a kernel for a configuration.
template <class Shapes>
bool fits_experts(Shapes shapes, const WgmmaConfig& c) {
  const auto found = [](auto) { return cudaSuccess; };
  return with_tile(shapes, c, found) == cudaSuccess && c.blocks > 0 && c.cluster == 1 && c.stream_k_blocks == 0 && !c.x_is_left;
}

// Whether a launch counts experts and tiles.
template <class Problem>
bool takes_experts(const Problem& p) {
  return p.experts <= kMostExperts && most_tiles(p, /*block_n=*/64, /*block_m=*/32) < int64_t{1} << 31;
}

// For one weight.
constexpr int64_t kMostTurns = 2;  // of whole tiles, beside which stream-K is worth it

// Microseconds that stream-K takes. `stage`: those of a k-tile; `tile`: those of a tile beside its k-tiles; `size`: a tile's
// outputs, of 128 by 256.
inline double time_of_stream_k(const TileScheduler& s, int blocks, double stage, double tile, double size,
                               const WeightOnlyWgmmaFit& m) {
  const int shared = shared_tiles(s), longest = s.split_k_tiles + (s.longer_splits > 0);
  const bool even = s.longer_splits == 0 && (s.shared_k_tiles % longest == 0 || longest % s.shared_k_tiles == 0);
  // Tiles that a range touches, or ranges that a tile does.
  const auto touched = [&](int k_tiles, int by) { return even ? ceil_div(k_tiles, by) : (k_tiles + by - 2) / by + 1; };
  const double range = longest * stage + (touched(longest, s.shared_k_tiles) - 1) * m.leaving * size;
  const double parts = touched(s.shared_k_tiles, s.split_k_tiles) * size;
  double time = tile + m.waiting + parts * m.adding;
  if (s.whole_tiles > 0)  // when the fix-up blocks end, or the others
    time += s.whole_tiles / blocks * (s.k_tiles * stage + tile) +
            std::max(range, ceil_div(shared, s.fix_up_blocks) * (m.waiting + parts * m.adding_beside));
  else
    time += std::max(range, (s.k_tiles - s.shared_k_tiles) * stage);
  return m.clearing + time;
}

// By a model of the time: turns of tiles, each of them steps of 64 k, and what sharing a tile costs. With clusters of 3 an eighth
// of the multiprocessors may stay idle, where GPCs have odd sizes.
template <class Problem>
Choice<WgmmaConfig> choose(const Problem& p, int stage, int most_cluster, const WeightOnlyWgmmaFit& model, int sms) {
  const int64_t stages = ceil_div(p.K, stage);
  Choice<WgmmaConfig> best;
  const auto consider_tiles = [&](int block_n, int block_m, double step, const WeightOnlyWgmmaFit::Tiles& cost) {
    const int64_t tiles = ceil_div(p.N, block_n) * ceil_div(p.M, block_m), rest = tiles % sms;
    const auto time_of = [&](int64_t parts) { return parts * (stage / kStep) * step + cost.tile; };
    const auto consider = [&](int cluster, int64_t ranges, int64_t blocks) {
      const WgmmaConfig config{block_m, cluster, static_cast<int>(ranges), static_cast<int>(blocks), block_n};
      const TileScheduler s = schedule(p, stage, config);
      if (!schedule_fits(s, config.blocks)) return;
      const double size = block_n * block_m / (128. * 256);
      double time = ranges > 0 ? time_of_stream_k(s, config.blocks, stage / kStep * step, cost.tile, size, model)
                               : ceil_div(s.whole_tiles, blocks) * time_of(stages);
      if (cluster > 1 && shared_tiles(s) > 0) time += time_of(ceil_div(stages, cluster)) + cost.cluster;
      best.consider(config, time);
    };
    consider(1, 0, even_blocks(tiles, 1, sms));
    consider(2, 0, even_blocks(tiles, 2, sms));
    if (most_cluster == 3) consider(3, 0, even_blocks(tiles, 3, sms * 7 / 8));
    if (rest == 0 || tiles / sms > kMostTurns) return;
    if (tiles < sms) {
      // As many ranges as there are blocks for, or fewer of the same length, which touch fewer tiles.
      for (int64_t ranges = sms - tiles; ranges > 0; --ranges)
        if (ranges == sms - tiles || schedule_tiles(tiles, stages, tiles + ranges, 1, ranges).longer_splits == 0)
          consider(1, ranges, tiles + ranges);
      return;
    }
    // The fewest ranges of a length, since that leaves more fix-up blocks; and a number that divides evenly by tiles.
    constexpr int kLengths = 3;
    const int64_t shared = rest * stages, shortest = ceil_div(shared, sms - 1);
    for (int64_t longest = shortest; longest < shortest + kLengths; ++longest) consider(1, ceil_div(shared, longest), sms);
    consider(1, (sms - 1) / rest * rest, sms);
  };
  const auto consider_kind = [&](int rows, const WeightOnlyWgmmaFit::Tiles& cost) {
    for (int i = 0; i < 6; ++i)
      if (cost.steps[i] > 0) consider_tiles(rows, kBlockMs[i], cost.steps[i], cost);
  };
  consider_kind(kPairN * 3 / 2, model.rows_192);
  consider_kind(kPairN, model.rows_128);
  consider_kind(kPairN / 2, model.rows_64);
  return best;
}

}  // namespace aoext::cuda::wgmma
