// Launching weight_only_wgmma.cuh, and the choice of its configurations, for weights of any format. A problem is one of int4.h or
// rowwise.h: what is read of it here both have.
#pragma once

#include <algorithm>

#include "cuda/kernels/sm90a/launch_segments.h"
#include "cuda/kernels/sm90a/tensor_map.h"
#include "cuda/kernels/sm90a/weight_only_wgmma.cuh"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda::wgmma {

constexpr int kSharedMemory = (227 << 10) - int(sizeof(Rest));  // of a multiprocessor, less what one block costs

template <class Problem>
Segments segments(const Problem& p, int stage, const WgmmaConfig& c) {
  const int64_t tiles = ceil_div(p.N, kRows) * ceil_div(p.M, c.tokens);
  return share_tiles(tiles, ceil_div(p.K, stage), c.blocks, c.cluster, c.ranges);
}

inline size_t tile_bytes(const WgmmaConfig& c) { return sizeof(float) * kRows * c.tokens; }

template <class Problem>
size_t workspace_bytes(const Problem& p, int stage, const WgmmaConfig& c) {
  const Segments s = segments(p, stage, c);
  return partial_bytes(s, tile_bytes(c)) + counter_bytes(s);
}

// Four warpgroups where their sums fit into registers; of w as many stages as its format wants, and as many steps of x as fit
// beside them.
template <class Weights, class Output, int kTokens>
struct Rings {
  static constexpr int kWays = kTokens <= 64 ? 2 : 1;
  static constexpr int kW = kTokens <= 64 ? Weights::kNarrowStages : Weights::kWideStages;
  using Empty = Layout<Weights, Output, kTokens, 0, kW>;
  static constexpr int kX = std::min(8, (kSharedMemory - Empty::kBytes) / (Empty::kXBytes + 16));
};

template <class T, int kTokens, class Weights, class Epilogue, class Problem>
cudaError_t launch_weight_only(const Problem& p, const Weights& weights, const typename Weights::Maps& maps,
                               const Epilogue& epilogue, const WgmmaConfig& config, void* workspace, cudaStream_t stream) {
  using Output = typename Epilogue::Output;
  using R = Rings<Weights, Output, kTokens>;
  using L = Layout<Weights, Output, kTokens, R::kX, R::kW>;
  const auto kernel = weight_only<T, Weights, Epilogue, kTokens, R::kX, R::kW, R::kWays>;

  Arguments<Weights, Epilogue> a{weights, epilogue};
  a.tiles = {static_cast<int>(ceil_div(p.N, kRows)), static_cast<int>(ceil_div(p.M, kTokens))};
  a.segments = segments(p, Weights::kStage, config);
  if (config.cluster > Weights::kMostCluster || !shares_fit(a.segments, config.blocks)) return cudaErrorInvalidValue;
  place(a.segments, workspace, tile_bytes(config));

  const TensorMap x(map_type(p.type), p.x, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.M}, {p.K * 2}, {kStep, kTokens});
  if (!x.valid) return cudaErrorNotSupported;

  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes);
  if (error != cudaSuccess) return error;

  const Grid grid{static_cast<unsigned>(config.blocks),  threads(R::kWays),  L::kBytes, stream,
                  static_cast<unsigned>(config.cluster), Overlap::after_ours};
  return launch_segments(kernel, grid, a.segments, x.map, maps, a);
}

// Rows of w, a line of a stage each.
template <class Problem>
TensorMap lines_map(const Problem& p, int64_t row_bytes) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {row_bytes, p.N}, {row_bytes}, {kLine, kRows}};
}

// Calls `run` with the number of tokens of a configuration's tiles as a constant.
template <class Run>
cudaError_t with_tokens(const WgmmaConfig& c, Run&& run) {
  switch (c.tokens) {
    case 32: return run(std::integral_constant<int, 32>());
    case 64: return run(std::integral_constant<int, 64>());
    case 96: return run(std::integral_constant<int, 96>());
    case 128: return run(std::integral_constant<int, 128>());
    case 192: return run(std::integral_constant<int, 192>());
    case 256: return run(std::integral_constant<int, 256>());
    default: return cudaErrorInvalidValue;
  }
}

// ---- The choice ----

// A model of the time, in microseconds on an H200: rounds of tiles, each of them steps of 64 k, and what blocks pay that share
// one.
struct Model {
  double steps[6];  // of tiles of kTokenCounts
  double tile, cluster;
  double meeting, part;  // of ranges; for each row of x of a part that another block adds
  double risk;           // of ranges: blocks are at so many places of K that x and w come out of L2 less often
  int most_cluster;      // 3: where parts of the chip have odd sizes, an eighth of it may stay idle
};

constexpr int kTokenCounts[] = {32, 64, 96, 128, 192, 256};
constexpr int64_t kMostParts = 8;  // of a tile

template <class Problem>
WgmmaConfig choose(const Problem& p, int stage, const Model& model, int sms) {
  const int64_t stages = ceil_div(p.K, stage);
  WgmmaConfig best{};
  double least = 0;
  for (int i = 0; i < 6; ++i) {
    const int tokens = kTokenCounts[i];
    const int64_t tiles = ceil_div(p.N, kRows) * ceil_div(p.M, tokens), rest = tiles % sms;
    const auto time_of = [&](int64_t parts) { return parts * (stage / kStep) * model.steps[i] + model.tile; };
    const auto consider = [&](int cluster, int64_t ranges, int64_t blocks) {
      const WgmmaConfig config{tokens, cluster, static_cast<int>(ranges), static_cast<int>(blocks)};
      const Segments s = segments(p, stage, config);
      if (!shares_fit(s, config.blocks)) return;
      double time = ceil_div(s.whole_tiles, blocks) * time_of(stages);
      if (ranges > 0) {
        const double meeting = model.meeting + model.part * tokens * (ceil_div(ranges, rest) - 1);
        time = model.risk * (time + time_of(ceil_div(rest * stages, ranges)) + meeting);
      } else if (rest_tiles(s) > 0) {
        time += time_of(ceil_div(stages, cluster)) + model.cluster;
      }
      if (best.tokens != 0 && time >= least) return;
      least = time;
      best = config;
    };
    consider(1, 0, even_blocks(tiles, 1, sms));
    consider(2, 0, even_blocks(tiles, 2, sms));
    if (model.most_cluster == 3) consider(3, 0, even_blocks(tiles, 3, sms * 7 / 8));
    if (rest == 0) continue;
    for (int64_t parts = 2; parts <= kMostParts && parts * rest <= sms; ++parts) consider(1, parts * rest, sms);
    if (kMostParts * rest > sms) consider(1, sms, sms);
  }
  return best;
}

}  // namespace aoext::cuda::wgmma
