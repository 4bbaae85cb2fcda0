#include "cuda/kernels/int4_wgmma.h"

#include <algorithm>

#include "cuda/kernels/sm90a/int4_wgmma.cuh"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda {
namespace {

constexpr int kSharedMemory = 227 << 10;  // of a multiprocessor, less what one block costs

// Four warpgroups where their sums fit into registers; three stages of w, four where there is room, and as many steps of
// x as fit beside them.
template <class S, int kTokens>
struct Rings {
  static constexpr int kWays = kTokens <= 64 ? 2 : 1;
  static constexpr int kW = kTokens <= 64 ? 4 : 3;
  static constexpr int kSpace = kSharedMemory - wgmma::Layout<S, kTokens, 0, kW>::kBytes;
  static constexpr int kX = std::min(8, kSpace / (wgmma::Layout<S, kTokens, 0, kW>::kXBytes + 16));
};

template <class T, class S, int kTokens, bool kGroup32>
cudaError_t launch(const Int4Linear& p, const WgmmaConfig& config, cudaStream_t stream) {
  using R = Rings<S, kTokens>;
  using L = wgmma::Layout<S, kTokens, R::kX, R::kW>;
  const auto kernel = wgmma::int4_wgmma<T, S, kTokens, kGroup32, R::kX, R::kW, R::kWays>;

  wgmma::Arguments a{};
  a.y = p.y, a.bias = p.bias, a.bias_type = p.bias_type;
  a.M = static_cast<int>(p.M), a.N = static_cast<int>(p.N);
  a.group_size = static_cast<int>(p.group_size);
  a.stages = static_cast<int>(ceil_div(p.K, wgmma::kStage));
  a.row_tiles = static_cast<int>(ceil_div(p.N, wgmma::kRows));
  a.token_tiles = static_cast<int>(ceil_div(p.M, kTokens));
  a.tiles = a.row_tiles * a.token_tiles, a.tile_stride = config.blocks / config.splits;
  a.splits = config.splits;

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

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = config.splits, attribute.val.clusterDim.y = 1, attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(config.blocks));
  launch.blockDim = dim3(wgmma::threads(R::kWays));
  launch.dynamicSmemBytes = L::kBytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  return cudaLaunchKernelEx(&launch, kernel, x.map, w.map, scale.map, zero.map, a);
}

template <class T, class S, int kTokens>
cudaError_t launch(const Int4Linear& p, const WgmmaConfig& c, cudaStream_t stream) {
  return p.group_size == 32 ? launch<T, S, kTokens, true>(p, c, stream) : launch<T, S, kTokens, false>(p, c, stream);
}

template <class T, class S>
cudaError_t launch_tile(const Int4Linear& p, const WgmmaConfig& c, cudaStream_t stream) {
  switch (c.tokens) {
    case 32: return launch<T, S, 32>(p, c, stream);
    case 64: return launch<T, S, 64>(p, c, stream);
    case 96: return launch<T, S, 96>(p, c, stream);
    case 128: return launch<T, S, 128>(p, c, stream);
    case 192: return launch<T, S, 192>(p, c, stream);
    case 256: return launch<T, S, 256>(p, c, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

// A model of the time, in microseconds on an H200: so many rounds of tiles, each of them steps of 64 k, and more where
// blocks share K. Fitted to what benchmarks/README.md lists: 2 to 4% off, at most 9%, but for 192 rows 7% and 17%.
namespace {

struct Cost {
  int tokens;
  double step, split;
};

constexpr Cost kCosts[] = {{32, 0.297, 3.8},  {64, 0.331, 3.4},  {96, 0.390, 4.4},
                           {128, 0.427, 4.5}, {192, 0.576, 6.7}, {256, 0.667, 7.4}};
constexpr double kTile = 1.0;

// Clusters that run at once: of three blocks fewer than a third of the multiprocessors, since these come in groups that
// three does not divide; larger ones leave still more idle.
int64_t clusters_at_once(int splits, int sms) { return splits < 3 ? sms / splits : sms * 39 / 132; }

}  // namespace

WgmmaConfig choose_int4_wgmma(const Int4Linear& p, int sms) {
  const int64_t stages = ceil_div(p.K, wgmma::kStage);
  WgmmaConfig best{};
  double least = 0;
  for (const Cost& c : kCosts)
    for (int splits = 1; splits <= std::min<int64_t>(3, stages); ++splits) {
      const int64_t tiles = ceil_div(p.N, wgmma::kRows) * ceil_div(p.M, c.tokens);
      const double rounds = ceil_div(tiles, clusters_at_once(splits, sms));
      const double steps = ceil_div(stages, splits) * wgmma::kSteps;
      const double time = rounds * (steps * c.step + kTile + (splits > 1 ? c.split : 0));
      if (best.tokens != 0 && time >= least) continue;
      least = time;
      best = {c.tokens, splits, static_cast<int>(splits == 1 ? std::min<int64_t>(tiles, sms) : tiles * splits)};
    }
  return best;
}

bool int4_wgmma_takes(const Int4Linear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool groups =
      (p.group_size % 32 == 0 && wgmma::kStage % p.group_size == 0) || p.group_size % wgmma::kStage == 0 || p.group_size == p.K;
  return groups && p.type != Element::fp32 && (p.scale_type == p.type || p.scale_type == Element::fp32) && p.K % 32 == 0 &&
         p.N % 8 == 0 && p.N >= 32 && p.M < kMost && p.N < kMost && p.K < kMost;
}

cudaError_t launch_int4_wgmma(const Int4Linear& p, const WgmmaConfig& c, cudaStream_t stream) {
  if (p.type == Element::bf16)
    return p.scale_type == Element::bf16 ? launch_tile<__nv_bfloat16, __nv_bfloat16>(p, c, stream)
                                         : launch_tile<__nv_bfloat16, float>(p, c, stream);
  return p.scale_type == Element::fp16 ? launch_tile<__half, __half>(p, c, stream) : launch_tile<__half, float>(p, c, stream);
}

}  // namespace aoext::cuda
