#include "cuda/kernels/int4_wgmma.h"

#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/int4_wgmma.cuh"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda {
namespace {

constexpr int kSharedMemory = (227 << 10) - int(sizeof(Rest));  // of a multiprocessor, less what one block costs

Segments segments(const Int4Linear& p, const WgmmaConfig& c) {
  const int64_t tiles = ceil_div(p.N, wgmma::kRows) * ceil_div(p.M, c.tokens);
  return share_tiles(tiles, ceil_div(p.K, wgmma::kStage), c.blocks, c.cluster, c.ranges);
}

size_t tile_bytes(const WgmmaConfig& c) { return sizeof(float) * wgmma::kRows * c.tokens; }

// Four warpgroups where their sums fit into registers; three stages of w, four where there is room, and as many steps of
// x as fit beside them.
template <class T, class S, int kTokens>
struct Rings {
  static constexpr int kWays = kTokens <= 64 ? 2 : 1;
  static constexpr int kW = kTokens <= 64 ? 4 : 3;
  static constexpr int kSpace = kSharedMemory - wgmma::Layout<T, S, kTokens, 0, kW>::kBytes;
  static constexpr int kX = std::min(8, kSpace / (wgmma::Layout<T, S, kTokens, 0, kW>::kXBytes + 16));
};

template <class T, class S, int kTokens, bool kGroup32>
cudaError_t launch(const Int4Linear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream) {
  using R = Rings<T, S, kTokens>;
  using L = wgmma::Layout<T, S, kTokens, R::kX, R::kW>;
  const auto kernel = wgmma::int4_wgmma<T, S, kTokens, kGroup32, R::kX, R::kW, R::kWays>;

  wgmma::Arguments<T> a{};
  a.epilogue = {static_cast<T*>(p.y), p.bias, p.bias_type, static_cast<int>(p.M), static_cast<int>(p.N)};
  a.group_size = static_cast<int>(p.group_size);
  a.tiles = {static_cast<int>(ceil_div(p.N, wgmma::kRows)), static_cast<int>(ceil_div(p.M, kTokens))};
  a.segments = segments(p, config);
  if (config.cluster > 2 || !shares_fit(a.segments, config.blocks)) return cudaErrorInvalidValue;
  place(a.segments, workspace, tile_bytes(config));

  const int64_t groups = p.K / p.group_size, scale_rows = p.group_size < wgmma::kStage ? wgmma::kStage / p.group_size : 1;
  const TensorMap x(map_type(p.type), p.x, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.M}, {p.K * 2}, {wgmma::kStep, kTokens});
  const TensorMap w(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {p.K / 2, p.N}, {p.K / 2},
                    {wgmma::kStage / 2, wgmma::kRows});
  const auto scale_map = [&](const void* data) {
    return TensorMap(map_type(p.scale_type), data, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, groups}, {p.N * int64_t{sizeof(S)}},
                     {wgmma::kRows, scale_rows});
  };
  const TensorMap scale = scale_map(p.scale), zero = scale_map(p.zero_point);
  if (!x.valid || !w.valid || !scale.valid || !zero.valid) return cudaErrorNotSupported;

  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes);
  if (error != cudaSuccess) return error;

  Grid grid{static_cast<unsigned>(config.blocks),  wgmma::threads(R::kWays), L::kBytes, stream,
            static_cast<unsigned>(config.cluster), Overlap::after_ours};
  if (config.ranges > 0) {
    const Grid one{1, 128, 0, stream, 1, Overlap::after_ours};
    const cudaError_t cleared = launch(clear_counters<unsigned>, one, a.segments.counters, rest_tiles(a.segments));
    if (cleared != cudaSuccess) return cleared;
    grid.overlap = Overlap::always;
  }
  return launch(kernel, grid, x.map, w.map, scale.map, zero.map, a);
}

template <class T, class S, int kTokens>
cudaError_t launch(const Int4Linear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  return p.group_size == 32 ? launch<T, S, kTokens, true>(p, c, workspace, stream)
                            : launch<T, S, kTokens, false>(p, c, workspace, stream);
}

template <class T, class S>
cudaError_t launch_tile(const Int4Linear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  switch (c.tokens) {
    case 32: return launch<T, S, 32>(p, c, workspace, stream);
    case 64: return launch<T, S, 64>(p, c, workspace, stream);
    case 96: return launch<T, S, 96>(p, c, workspace, stream);
    case 128: return launch<T, S, 128>(p, c, workspace, stream);
    case 192: return launch<T, S, 192>(p, c, workspace, stream);
    case 256: return launch<T, S, 256>(p, c, workspace, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

// A model of the time, in microseconds on an H200: rounds of tiles, each of them steps of 64 k, and what blocks pay that share
// one. Fitted to what benchmarks/README.md lists: 3% off, at most 16%.
namespace {

struct Cost {
  int tokens;
  double step;
};

constexpr Cost kCosts[] = {{32, 0.261}, {64, 0.336}, {96, 0.405}, {128, 0.450}, {192, 0.562}, {256, 0.681}};
constexpr double kTile = 1.67, kCluster = 2.5;
constexpr double kMeeting = 6.5, kPart = 0.0107;  // of ranges; for each row of x of a part that another block adds
constexpr double kRisk = 1.05;     // of ranges: blocks are at so many places of K that x and w come out of L2 less often
constexpr int64_t kMostParts = 8;  // of a tile

}  // namespace

WgmmaConfig choose_int4_wgmma(const Int4Linear& p, int sms) {
  const int64_t stages = ceil_div(p.K, wgmma::kStage);
  WgmmaConfig best{};
  double least = 0;
  for (const Cost& c : kCosts) {
    const int64_t tiles = ceil_div(p.N, wgmma::kRows) * ceil_div(p.M, c.tokens), rest = tiles % sms;
    const auto time_of = [&](int64_t parts) { return parts * wgmma::kSteps * c.step + kTile; };
    const auto consider = [&](int cluster, int64_t ranges, int64_t blocks) {
      const WgmmaConfig config{c.tokens, cluster, static_cast<int>(ranges), static_cast<int>(blocks)};
      const Segments s = segments(p, config);
      if (!shares_fit(s, config.blocks)) return;
      double time = ceil_div(s.whole_tiles, blocks) * time_of(stages);
      if (ranges > 0) {
        const double meeting = kMeeting + kPart * c.tokens * (ceil_div(ranges, rest) - 1);
        time = kRisk * (time + time_of(ceil_div(rest * stages, ranges)) + meeting);
      } else if (rest_tiles(s) > 0) {
        time += time_of(ceil_div(stages, cluster)) + kCluster;
      }
      if (best.tokens != 0 && time >= least) return;
      least = time;
      best = config;
    };
    consider(1, 0, even_blocks(tiles, 1, sms));
    consider(2, 0, even_blocks(tiles, 2, sms));
    if (rest == 0) continue;
    for (int64_t parts = 2; parts <= kMostParts && parts * rest <= sms; ++parts) consider(1, parts * rest, sms);
    if (kMostParts * rest > sms) consider(1, sms, sms);
  }
  return best;
}

size_t int4_wgmma_workspace(const Int4Linear& p, const WgmmaConfig& c) {
  const Segments s = segments(p, c);
  return partial_bytes(s, tile_bytes(c)) + counter_bytes(s);
}

bool int4_wgmma_takes(const Int4Linear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool groups =
      (p.group_size % 32 == 0 && wgmma::kStage % p.group_size == 0) || p.group_size % wgmma::kStage == 0 || p.group_size == p.K;
  return groups && p.type != Element::fp32 && (p.scale_type == p.type || p.scale_type == Element::fp32) && p.K % 32 == 0 &&
         p.N % 8 == 0 && p.N >= 32 && p.M < kMost && p.N < kMost && p.K < kMost;
}

cudaError_t launch_int4_wgmma(const Int4Linear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  if (p.type == Element::bf16)
    return p.scale_type == Element::bf16 ? launch_tile<__nv_bfloat16, __nv_bfloat16>(p, c, workspace, stream)
                                         : launch_tile<__nv_bfloat16, float>(p, c, workspace, stream);
  return p.scale_type == Element::fp16 ? launch_tile<__half, __half>(p, c, workspace, stream)
                                       : launch_tile<__half, float>(p, c, workspace, stream);
}

}  // namespace aoext::cuda
