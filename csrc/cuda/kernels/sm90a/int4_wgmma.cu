#include "cuda/kernels/int4_wgmma.h"

#include "cuda/kernels/sm90a/int4_wgmma_launch.h"

namespace aoext::cuda {
namespace {

using wgmma::counted_group_size;
constexpr int kStage = wgmma::kInt4Stage;

constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/192, /*block_m=*/96, 128>,
                            wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 64, 96, 128, 192, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32, 64, 128, 256>>
    kShapes;

template <class T, class S, int kScaleChunks>
cudaError_t launch_typed(const Int4Linear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream) {
  const int64_t group_size = counted_group_size(p), scale_rows = group_size < kStage ? kStage / group_size : 1;
  const int64_t groups = ceil_div(p.K, group_size);
  const auto scale_map = [&](const void* data) {
    return TensorMap(map_type(p.scale_type), data, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, groups}, {p.N * int64_t{sizeof(S)}},
                     {config.block_n, scale_rows});
  };
  const TensorMap lines = wgmma::lines_map(p, p.K / 2, config.block_n), scale = scale_map(p.scale),
                  zero = scale_map(p.zero_point);
  if (!lines.valid || !scale.valid || !zero.valid) return cudaErrorNotSupported;
  const wgmma::Biased<T> epilogue{static_cast<T*>(p.y), p.row_scale,           p.bias,
                                  p.bias_type,          static_cast<int>(p.M), static_cast<int>(p.N)};
  return wgmma::with_tile(kShapes, config, [&](auto shape) {
    using Weights = wgmma::Int4Weights<T, S, kScaleChunks, decltype(shape), /*kOfExpert=*/false>;
    return wgmma::launch_weight_only<T, shape.kBlockM>(p, Weights{static_cast<int>(group_size)}, {lines.map, scale.map, zero.map},
                                                       epilogue, config, workspace, stream);
  });
}

constexpr int kMostCluster = 2;

}  // namespace

Choice<Int4WgmmaConfig> KernelOf<Int4WgmmaConfig>::choose(const Int4Linear& p, const Device& device) {
  return wgmma::choose(p, kStage, kMostCluster, fits_of(device).int4_wgmma, device.multiprocessors).as<Int4WgmmaConfig>();
}

bool KernelOf<Int4WgmmaConfig>::fits(const Int4Linear& p, const Int4WgmmaConfig& c) {
  return wgmma::fits(kShapes, p, kStage, kMostCluster, c);
}

size_t KernelOf<Int4WgmmaConfig>::workspace(const Int4Linear& p, const Int4WgmmaConfig& c) {
  return wgmma::workspace_bytes(p, kStage, c);
}

bool KernelOf<Int4WgmmaConfig>::takes(const Int4Linear& p) {
  constexpr int64_t kMost = (int64_t{1} << 31) - kStage;
  const bool groups = (p.group_size % 32 == 0 && kStage % p.group_size == 0) || p.group_size % kStage == 0 || p.group_size == p.K;
  return groups && p.type != Element::fp32 && (p.scale_type == p.type || p.scale_type == Element::fp32) && p.K % 32 == 0 &&
         p.N % 8 == 0 && p.N >= 32 && p.M < kMost && p.N < kMost && p.K < kMost;
}

cudaError_t KernelOf<Int4WgmmaConfig>::launch(const Int4Linear& p, const Int4WgmmaConfig& c, void* workspace,
                                              cudaStream_t stream) {
  return int4_wgmma::with_types(
      p, [&]<class T, class S, int kScaleChunks>() { return launch_typed<T, S, kScaleChunks>(p, c, workspace, stream); });
}

std::string KernelOf<Int4WgmmaConfig>::instances() {
  return instances_text(kName, int4_wgmma::kKeyNames, [](auto&& f) { int4_wgmma::for_each_instance(kShapes, f); });
}

std::string KernelOf<Int4WgmmaConfig>::instance(const Int4Linear& p, const Int4WgmmaConfig& c) {
  return instance_text(kName, int4_wgmma::kKeyNames, int4_wgmma::key_of(p, c));
}

}  // namespace aoext::cuda
