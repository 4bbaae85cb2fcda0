#include "cuda/kernels/rowwise_wgmma.h"

#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda {
namespace {

using Config = RowwiseWgmmaConfig;

Segments segments(const RowwiseLinear& p, const Config& c) {
  const int64_t tiles = ceil_div(p.N, c.rows) * ceil_div(p.M, c.tokens);
  return share_tiles(tiles, ceil_div(p.K, wgmma::kStageBytes), c.blocks, c.cluster, c.ranges);
}

size_t tile_bytes(const Config& c) { return sizeof(float) * c.rows * c.tokens; }

constexpr int blocks_of(int rows) { return rows == 64 ? 2 : 1; }  // of a multiprocessor

// As many stages as fit.
template <class Output, int kRows, int kTokens>
struct Ring {
  static constexpr int kBlocks = blocks_of(kRows);
  static constexpr int kMemory = (228 << 10) / kBlocks - 1024 - int(sizeof(Rest));  // of a multiprocessor, less what a block costs
  using Empty = wgmma::RowwiseLayout<Output, kRows, kTokens, 0>;
  static constexpr int kStages = std::min(16, (kMemory - Empty::kBytes) / (Empty::kStage + 16));
};

template <Element kType, class Output, int kRows, int kTokens>
cudaError_t launch(const RowwiseLinear& p, const Config& config, void* workspace, cudaStream_t stream) {
  using R = Ring<Output, kRows, kTokens>;
  using L = wgmma::RowwiseLayout<Output, kRows, kTokens, R::kStages>;
  const auto kernel = wgmma::rowwise_wgmma<kType, Output, kRows, kTokens, R::kStages, R::kBlocks>;

  wgmma::RowwiseArguments a{};
  a.p = p;
  a.tiles = {static_cast<int>(ceil_div(p.N, kRows)), static_cast<int>(ceil_div(p.M, kTokens))};
  a.segments = segments(p, config);
  a.batch = config.batch, a.first = config.first, a.ahead = config.ahead, a.hint = config.hint;
  if ((config.cluster != 1 && config.cluster != 2 && config.cluster != 4) || !shares_fit(a.segments, config.blocks))
    return cudaErrorInvalidValue;
  place(a.segments, workspace, tile_bytes(config));

  const auto map = [&](const void* data, int64_t rows, int64_t box) {
    return TensorMap(CU_TENSOR_MAP_DATA_TYPE_UINT8, data, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, rows}, {p.K},
                     {wgmma::kStageBytes, box});
  };
  const TensorMap x = map(p.x, p.M, kTokens), w = map(p.weight, p.N, kRows);
  const TensorMap lines(CU_TENSOR_MAP_DATA_TYPE_UINT32, p.weight, CU_TENSOR_MAP_SWIZZLE_NONE, {p.K / 4, p.N}, {p.K},
                        {128, kRows});
  if (!x.valid || !w.valid || !lines.valid) return cudaErrorNotSupported;

  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes);
  if (error != cudaSuccess) return error;

  Grid grid{static_cast<unsigned>(config.blocks),  wgmma::rowwise_threads(kRows), L::kBytes, stream,
            static_cast<unsigned>(config.cluster), Overlap::after_ours};
  if (config.ranges > 0) {
    const Grid one{1, 128, 0, stream, 1, Overlap::after_ours};
    const cudaError_t cleared = launch(clear_counters<unsigned>, one, a.segments.counters, rest_tiles(a.segments));
    if (cleared != cudaSuccess) return cleared;
    grid.overlap = Overlap::always;
  }
  return launch(kernel, grid, x.map, w.map, lines.map, a);
}

template <Element kType, class Output>
cudaError_t launch_tile(const RowwiseLinear& p, const Config& c, void* workspace, cudaStream_t stream) {
  const auto is = [&](int rows, int tokens) { return c.rows == rows && c.tokens == tokens; };
  if (is(64, 32)) return launch<kType, Output, 64, 32>(p, c, workspace, stream);
  if (is(64, 64)) return launch<kType, Output, 64, 64>(p, c, workspace, stream);
  if (is(128, 32)) return launch<kType, Output, 128, 32>(p, c, workspace, stream);
  if (is(128, 64)) return launch<kType, Output, 128, 64>(p, c, workspace, stream);
  if (is(64, 128)) return launch<kType, Output, 64, 128>(p, c, workspace, stream);
  if (is(128, 128)) return launch<kType, Output, 128, 128>(p, c, workspace, stream);
  if (is(128, 256)) return launch<kType, Output, 128, 256>(p, c, workspace, stream);
  return cudaErrorInvalidValue;
}

template <Element kType>
cudaError_t launch_output(const RowwiseLinear& p, const Config& c, void* workspace, cudaStream_t stream) {
  if (p.output == Element::bf16) return launch_tile<kType, __nv_bfloat16>(p, c, workspace, stream);
  if (p.output == Element::fp16) return launch_tile<kType, __half>(p, c, workspace, stream);
  if constexpr (kType == Element::int8) return launch_tile<kType, float>(p, c, workspace, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

RowwiseWgmmaConfig choose_rowwise_wgmma(const RowwiseLinear& p, int sms) {
  const int64_t tiles = ceil_div(p.N, 128) * ceil_div(p.M, 64);
  return {128, 64, 1, 0, int(even_blocks(tiles, 1, sms)), 1, 8, 0, 0};
}

size_t rowwise_wgmma_workspace(const RowwiseLinear& p, const Config& c) {
  const Segments s = segments(p, c);
  return partial_bytes(s, tile_bytes(c)) + counter_bytes(s);
}

bool rowwise_wgmma_takes(const RowwiseLinear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool output = p.weight_type == Element::int8 || p.output == Element::bf16 || p.output == Element::fp16;
  return is_8bit(p.type) && p.type == p.weight_type && output && p.K % 16 == 0 && aligned(p.x) && aligned(p.weight) &&
         aligned(p.y) && p.M < kMost && p.N < kMost && p.K < kMost;
}

cudaError_t launch_rowwise_wgmma(const RowwiseLinear& p, const Config& c, void* workspace, cudaStream_t stream) {
  switch (p.weight_type) {
    case Element::int8: return launch_output<Element::int8>(p, c, workspace, stream);
    case Element::e4m3: return launch_output<Element::e4m3>(p, c, workspace, stream);
    default: return launch_output<Element::e5m2>(p, c, workspace, stream);
  }
}

}  // namespace aoext::cuda
