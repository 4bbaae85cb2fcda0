#include "cuda/kernels/int4_grouped_wgmma.h"

#include "cuda/kernels/int4_wgmma.h"
#include "cuda/kernels/sm90a/int4_wgmma_launch.h"

namespace aoext::cuda {
namespace {

using wgmma::counted_group_size;
constexpr int kStage = wgmma::kInt4Stage;

// Few rows of an expert fill the smallest; those of several experts never share one.
constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 64, 128, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32>>
    kShapes;

WgmmaConfig tile_of(const GroupedWgmmaConfig& c) { return {c.block_m, 1, 0, c.blocks, c.block_n}; }

template <class T, class S, int kScaleChunks>
cudaError_t launch_typed(const Int4Linear& p, const GroupedWgmmaConfig& config, cudaStream_t stream) {
  const int64_t group_size = counted_group_size(p), scale_rows = group_size < kStage ? kStage / group_size : 1;
  const int64_t groups = ceil_div(p.K, group_size), scale_bytes = p.N * int64_t{sizeof(S)};
  const auto scale_map = [&](const void* data) {
    return TensorMap(map_type(p.scale_type), data, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, groups, p.experts},
                     {scale_bytes, scale_bytes * groups}, {config.block_n, scale_rows, 1});
  };
  const TensorMap lines = wgmma::expert_lines_map(p, p.K / 2, config.block_n), scale = scale_map(p.scale),
                  zero = scale_map(p.zero_point);
  if (!lines.valid || !scale.valid || !zero.valid) return cudaErrorNotSupported;
  const wgmma::Biased<T> epilogue{static_cast<T*>(p.y), p.row_scale,           p.bias,
                                  p.bias_type,          static_cast<int>(p.M), static_cast<int>(p.N)};
  return wgmma::with_tile(kShapes, tile_of(config), [&](auto shape) {
    using Weights = wgmma::Int4Weights<T, S, kScaleChunks, decltype(shape), /*kOfExpert=*/true>;
    return wgmma::launch_grouped<T, shape.kBlockM>(p, Weights{static_cast<int>(group_size)}, {lines.map, scale.map, zero.map},
                                                   epilogue, config.blocks, stream);
  });
}

}  // namespace

Choice<GroupedWgmmaConfig> KernelOf<GroupedWgmmaConfig>::choose(const Int4Linear& p, const Device& device) {
  return wgmma::choose_for_experts<GroupedWgmmaConfig>(kShapes, p, kStage, fits_of(device).int4_wgmma, device.multiprocessors);
}

bool KernelOf<GroupedWgmmaConfig>::fits(const Int4Linear&, const GroupedWgmmaConfig& c) {
  return wgmma::fits_experts(kShapes, tile_of(c));
}

bool KernelOf<GroupedWgmmaConfig>::takes(const Int4Linear& p) {
  return KernelOf<Int4WgmmaConfig>::takes(p) && wgmma::takes_experts(p);
}

cudaError_t KernelOf<GroupedWgmmaConfig>::launch(const Int4Linear& p, const GroupedWgmmaConfig& c, void* /*workspace*/,
                                                 cudaStream_t stream) {
  return int4_wgmma::with_types(
      p, [&]<class T, class S, int kScaleChunks>() { return launch_typed<T, S, kScaleChunks>(p, c, stream); });
}

std::string KernelOf<GroupedWgmmaConfig>::instances() {
  return instances_text(kName, int4_wgmma::kKeyNames, [](auto&& f) { int4_wgmma::for_each_instance(kShapes, f); });
}

std::string KernelOf<GroupedWgmmaConfig>::instance(const Int4Linear& p, const GroupedWgmmaConfig& c) {
  return instance_text(kName, int4_wgmma::kKeyNames, int4_wgmma::key_of(p, c));
}

}  // namespace aoext::cuda
