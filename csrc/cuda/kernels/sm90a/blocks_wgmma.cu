#include "cuda/kernels/blocks_wgmma.h"

#include "cuda/kernels/sm90a/blocks_wgmma.cuh"
#include "cuda/kernels/sm90a/weight_only_launch.h"

namespace aoext::cuda {
namespace {

constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 96, 128, 192, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32, 64, 128>>
    kShapes8;
constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 64, 128, 192, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32, 64, 128>>
    kShapes4;
// For experts, whose tiles are never shared.
constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 96, 128, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32>>
    kExpertShapes8;
constexpr wgmma::TileShapes<wgmma::TilesOf</*block_n=*/128, /*block_m=*/32, 64, 128, 256>,
                            wgmma::TilesOf</*block_n=*/64, /*block_m=*/32>>
    kExpertShapes4;
constexpr int kMostCluster = 2;

bool is_table(const BlockLinear& p) { return p.weight_type == Element::lut4; }
int stage(const BlockLinear& p) { return is_table(p) ? 256 : 128; }

// k of a scale that is arranged.
int granule(const BlockLinear& p) {
  const bool one = p.block_k >= p.K;
  if (is_table(p)) return one || p.block_k % 32 == 0 ? 32 : 16;
  return one || p.block_k % 128 == 0 ? 128 : 32;
}

int64_t weights(const BlockLinear& p) { return std::max<int64_t>(p.experts, 1); }

// The workspace: sums of tiles that are shared, then what is arranged.
Arranged arranged(const BlockLinear& p, const WgmmaConfig& c, void* workspace) {
  const auto round = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const size_t row_bytes = round(sizeof(float) * p.N * weights(p));
  Arranged a{};
  a.groups = ceil_div(p.K, granule(p)), a.stride = ceil_div(p.N, 8) * 8;
  char* at = static_cast<char*>(workspace) + round(p.experts > 0 ? 0 : wgmma::workspace_bytes(p, stage(p), c));
  a.table = reinterpret_cast<Table16*>(at), at += 256;
  a.factor = reinterpret_cast<float*>(at), at += row_bytes;
  if (relative_scales(p)) a.largest = reinterpret_cast<float*>(at), at += row_bytes;
  a.scales = at;
  return a;
}

template <class T, Element kType, int kGranule, class Shapes>
cudaError_t launch_of_experts(Shapes shapes, const BlockLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  const Arranged a = arranged(p, c, workspace);
  const int64_t scale_bytes = a.stride * int64_t{sizeof(T)};
  const TensorMap lines = wgmma::expert_lines_map(p, row_bytes(p), c.block_n);
  const TensorMap scale(map_type(p.type), a.scales, CU_TENSOR_MAP_SWIZZLE_NONE, {a.stride, a.groups, p.experts},
                        {scale_bytes, scale_bytes * a.groups}, {c.block_n, stage(p) / kGranule, 1});
  if (!lines.valid || !scale.valid) return cudaErrorNotSupported;
  const cudaError_t error = arrange<T, kGranule>(p, a, Overlap::after_ours, stream);
  if (error != cudaSuccess) return error;
  const wgmma::FactoredRows<T> epilogue{static_cast<T*>(p.y), static_cast<int>(p.M), static_cast<int>(p.N), a.factor, p.bias,
                                        p.bias_type};
  return wgmma::with_tile(shapes, c, [&](auto shape) {
    using Weights = wgmma::BlockWeights<T, kType, kGranule, decltype(shape), /*kOfExpert=*/true>;
    return wgmma::launch_grouped<T, shape.kBlockM>(p, Weights{a.table}, {lines.map, scale.map}, epilogue, c.blocks, stream);
  });
}

template <class T, Element kType, int kGranule, class Shapes>
cudaError_t launch_of_one(Shapes shapes, const BlockLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  const Arranged a = arranged(p, c, workspace);
  const TensorMap lines = wgmma::lines_map(p, row_bytes(p), c.block_n);
  const TensorMap scale(map_type(p.type), a.scales, CU_TENSOR_MAP_SWIZZLE_NONE, {a.stride, a.groups},
                        {a.stride * int64_t{sizeof(T)}}, {c.block_n, stage(p) / kGranule});
  if (!lines.valid || !scale.valid) return cudaErrorNotSupported;
  const cudaError_t error = arrange<T, kGranule>(p, a, Overlap::after_ours, stream);
  if (error != cudaSuccess) return error;
  const wgmma::FactoredRows<T> epilogue{static_cast<T*>(p.y), static_cast<int>(p.M), static_cast<int>(p.N), a.factor, p.bias,
                                        p.bias_type};
  return wgmma::with_tile(shapes, c, [&](auto shape) {
    using Weights = wgmma::BlockWeights<T, kType, kGranule, decltype(shape), /*kOfExpert=*/false>;
    return wgmma::launch_weight_only<T, shape.kBlockM>(p, Weights{a.table}, {lines.map, scale.map}, epilogue, c, workspace,
                                                       stream);
  });
}

template <class T, Element kType, int kGranule>
cudaError_t launch_typed(const BlockLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  if constexpr (kType == Element::lut4)
    return p.experts > 0 ? launch_of_experts<T, kType, kGranule>(kExpertShapes4, p, c, workspace, stream)
                         : launch_of_one<T, kType, kGranule>(kShapes4, p, c, workspace, stream);
  else
    return p.experts > 0 ? launch_of_experts<T, kType, kGranule>(kExpertShapes8, p, c, workspace, stream)
                         : launch_of_one<T, kType, kGranule>(kShapes8, p, c, workspace, stream);
}

template <class T>
cudaError_t launch_typed(const BlockLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  const bool fine = granule(p) < 32 || (granule(p) == 32 && !is_table(p));
  switch (p.weight_type) {
    case Element::int8:
      return fine ? launch_typed<T, Element::int8, 32>(p, c, workspace, stream)
                  : launch_typed<T, Element::int8, 128>(p, c, workspace, stream);
    case Element::e4m3:
      return fine ? launch_typed<T, Element::e4m3, 32>(p, c, workspace, stream)
                  : launch_typed<T, Element::e4m3, 128>(p, c, workspace, stream);
    default:
      return fine ? launch_typed<T, Element::lut4, 16>(p, c, workspace, stream)
                  : launch_typed<T, Element::lut4, 32>(p, c, workspace, stream);
  }
}

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"type", "weight", "granule", "block_n", "block_m", "experts"};

// f(key) of each.
template <class F>
void for_each_instance(F&& f) {
  for (const Element type : {Element::bf16, Element::fp16}) {
    const auto add = [&](auto shapes, Element weight, int granule, int experts) {
      wgmma::for_each_shape(shapes,
                            [&](auto shape) { f(Key{int(type), int(weight), granule, shape.kBlockN, shape.kBlockM, experts}); });
    };
    for (const Element weight : {Element::int8, Element::e4m3})
      for (const int granule : {32, 128}) add(kShapes8, weight, granule, 0), add(kExpertShapes8, weight, granule, 1);
    for (const int granule : {16, 32}) add(kShapes4, Element::lut4, granule, 0), add(kExpertShapes4, Element::lut4, granule, 1);
  }
}

Key key_of(const BlockLinear& p, const WgmmaConfig& c) {
  return {int(p.type), int(p.weight_type), granule(p), c.block_n, c.block_m, p.experts > 0};
}

// Times of tiles that there are.
template <class Shapes>
WeightOnlyWgmmaFit those_of(Shapes shapes, const WeightOnlyWgmmaFit& all) {
  WeightOnlyWgmmaFit fit = all;
  const auto restrict_to = [&](WeightOnlyWgmmaFit::Tiles& tiles, int rows) {
    for (int i = 0; i < 6; ++i) {
      bool found = false;
      wgmma::for_each_shape(shapes,
                            [&](auto shape) { found = found || (shape.kBlockN == rows && shape.kBlockM == wgmma::kBlockMs[i]); });
      if (!found) tiles.steps[i] = 0;
    }
  };
  restrict_to(fit.rows_192, 192), restrict_to(fit.rows_128, 128), restrict_to(fit.rows_64, 64);
  return fit;
}

}  // namespace

Choice<BlocksWgmmaConfig> KernelOf<BlocksWgmmaConfig>::choose(const BlockLinear& p, const Device& device) {
  if (p.experts > 0) {
    const auto choose = [&](auto shapes, const WeightOnlyWgmmaFit& fit) {
      return wgmma::choose_for_experts<BlocksWgmmaConfig>(shapes, p, stage(p), fit, device.multiprocessors);
    };
    return is_table(p) ? choose(kExpertShapes4, fits_of(device).int4_wgmma)
                       : choose(kExpertShapes8, fits_of(device).weight_only_wgmma);
  }
  const WeightOnlyWgmmaFit fit =
      is_table(p) ? those_of(kShapes4, fits_of(device).int4_wgmma) : those_of(kShapes8, fits_of(device).weight_only_wgmma);
  return wgmma::choose(p, stage(p), kMostCluster, fit, device.multiprocessors).as<BlocksWgmmaConfig>();
}

bool KernelOf<BlocksWgmmaConfig>::fits(const BlockLinear& p, const BlocksWgmmaConfig& c) {
  if (p.experts > 0) return is_table(p) ? wgmma::fits_experts(kExpertShapes4, c) : wgmma::fits_experts(kExpertShapes8, c);
  return is_table(p) ? wgmma::fits(kShapes4, p, stage(p), kMostCluster, c) : wgmma::fits(kShapes8, p, stage(p), kMostCluster, c);
}

size_t KernelOf<BlocksWgmmaConfig>::workspace(const BlockLinear& p, const BlocksWgmmaConfig& c) {
  const Arranged a = arranged(p, c, nullptr);
  return reinterpret_cast<size_t>(a.scales) + static_cast<size_t>(weights(p) * a.groups * a.stride) * 2;
}

bool KernelOf<BlocksWgmmaConfig>::takes(const BlockLinear& p) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 256;
  const bool codes = is_table(p) || p.weight_type == Element::int8 || p.weight_type == Element::e4m3;
  const bool blocks = p.block_k >= p.K || p.block_k % (is_table(p) ? 16 : 32) == 0;
  return (p.type == Element::bf16 || p.type == Element::fp16) && codes && blocks && p.output == p.type &&
         row_bytes(p) % 16 == 0 && p.M < kMost && p.N < kMost && p.K < kMost && (p.experts == 0 || wgmma::takes_experts(p));
}

cudaError_t KernelOf<BlocksWgmmaConfig>::launch(const BlockLinear& p, const BlocksWgmmaConfig& c, void* workspace,
                                                cudaStream_t stream) {
  return p.type == Element::bf16 ? launch_typed<__nv_bfloat16>(p, c, workspace, stream)
                                 : launch_typed<__half>(p, c, workspace, stream);
}

std::string KernelOf<BlocksWgmmaConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<BlocksWgmmaConfig>::instance(const BlockLinear& p, const BlocksWgmmaConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
