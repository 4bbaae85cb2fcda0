#include "cuda/kernels/weight_only_wgmma.h"

#include "cuda/kernels/sm90a/eight_bit_wgmma.cuh"
#include "cuda/kernels/sm90a/weight_only_launch.h"

namespace aoext::cuda {
namespace {

constexpr int kStage = 128;  // of K, whatever the type

constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/192, /*block_m=*/64, 96, 128>,
                            wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 96, 128, 192, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32, 64, 128>>
    kShapes;
// For experts, whose tiles are never shared.
constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 96, 128, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32>>
    kExpertShapes;

template <class T, Element kType>
cudaError_t launch_of_experts(const RowwiseLinear& p, const WgmmaConfig& config, cudaStream_t stream) {
  const TensorMap lines = wgmma::expert_lines_map(p, p.K, config.block_n);
  if (!lines.valid) return cudaErrorNotSupported;
  const wgmma::ScaledRows<T> epilogue{static_cast<T*>(p.y), static_cast<int>(p.M), static_cast<int>(p.N), p};
  return wgmma::with_tile(kExpertShapes, config, [&](auto shape) {
    using Weights = wgmma::EightBitWeights<T, kType, decltype(shape), /*kOfExpert=*/true>;
    return wgmma::launch_grouped<T, shape.kBlockM>(p, Weights{}, {lines.map}, epilogue, config.blocks, stream);
  });
}

template <class T, Element kType>
cudaError_t launch_typed(const RowwiseLinear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream) {
  if (p.experts > 0) return launch_of_experts<T, kType>(p, config, stream);
  const TensorMap lines = wgmma::lines_map(p, p.K, config.block_n);
  if (!lines.valid) return cudaErrorNotSupported;
  const wgmma::ScaledRows<T> epilogue{static_cast<T*>(p.y), static_cast<int>(p.M), static_cast<int>(p.N), p};
  return wgmma::with_tile(kShapes, config, [&](auto shape) {
    using Weights = wgmma::EightBitWeights<T, kType, decltype(shape), /*kOfExpert=*/false>;
    static_assert(Weights::kStage == kStage);
    return wgmma::launch_weight_only<T, shape.kBlockM>(p, Weights{}, {lines.map}, epilogue, config, workspace, stream);
  });
}

template <class T>
cudaError_t launch_typed(const RowwiseLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  switch (p.weight_type) {
    case Element::int8: return launch_typed<T, Element::int8>(p, c, workspace, stream);
    case Element::e4m3: return launch_typed<T, Element::e4m3>(p, c, workspace, stream);
    default: return launch_typed<T, Element::e5m2>(p, c, workspace, stream);
  }
}

// What tells instances apart.
using Key = std::array<int, 5>;
constexpr std::array<const char*, 5> kKeyNames = {"type", "weight", "block_n", "block_m", "experts"};

// f(key) of each.
template <class F>
void for_each_instance(F&& f) {
  for (const Element type : {Element::bf16, Element::fp16})
    for (const Element weight : {Element::int8, Element::e4m3, Element::e5m2}) {
      const auto add = [&](auto shape, int experts) { f(Key{int(type), int(weight), shape.kBlockN, shape.kBlockM, experts}); };
      wgmma::for_each_shape(kShapes, [&](auto shape) { add(shape, 0); });
      wgmma::for_each_shape(kExpertShapes, [&](auto shape) { add(shape, 1); });
    }
}

Key key_of(const RowwiseLinear& p, const WgmmaConfig& c) {
  return {int(p.type), int(p.weight_type), c.block_n, c.block_m, p.experts > 0};
}

constexpr int kMostCluster = 3;

}  // namespace

Choice<WeightOnlyWgmmaConfig> KernelOf<WeightOnlyWgmmaConfig>::choose(const RowwiseLinear& p, const Device& device) {
  const WeightOnlyWgmmaFit& model = fits_of(device).weight_only_wgmma;
  if (p.experts > 0)
    return wgmma::choose_for_experts<WeightOnlyWgmmaConfig>(kExpertShapes, p, kStage, model, device.multiprocessors);
  return wgmma::choose(p, kStage, kMostCluster, model, device.multiprocessors).as<WeightOnlyWgmmaConfig>();
}

bool KernelOf<WeightOnlyWgmmaConfig>::fits(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c) {
  if (p.experts > 0) return wgmma::fits_experts(kExpertShapes, c);
  return wgmma::fits(kShapes, p, kStage, kMostCluster, c);
}

size_t KernelOf<WeightOnlyWgmmaConfig>::workspace(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c) {
  return p.experts > 0 ? 0 : wgmma::workspace_bytes(p, kStage, c);
}

bool KernelOf<WeightOnlyWgmmaConfig>::takes(const RowwiseLinear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  return (p.type == Element::bf16 || p.type == Element::fp16) && is_8bit(p.weight_type) && p.output == p.type &&
         p.row_scale == nullptr && p.K % 16 == 0 && p.M < kMost && p.N < kMost && p.K < kMost &&
         (p.experts == 0 || wgmma::takes_experts(p));
}

cudaError_t KernelOf<WeightOnlyWgmmaConfig>::launch(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c, void* workspace,
                                                    cudaStream_t stream) {
  return p.type == Element::bf16 ? launch_typed<__nv_bfloat16>(p, c, workspace, stream)
                                 : launch_typed<__half>(p, c, workspace, stream);
}

std::string KernelOf<WeightOnlyWgmmaConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<WeightOnlyWgmmaConfig>::instance(const RowwiseLinear& p, const WeightOnlyWgmmaConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
