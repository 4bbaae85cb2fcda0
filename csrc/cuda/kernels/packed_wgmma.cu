// The choice among clusters of packed_wgmma.cuh, and their launch.
#include "cuda/kernels/packed_wgmma.h"

#include <algorithm>
#include <cmath>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/packed_mma_launch.h"
#include "cuda/kernels/packed_tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace aoext::cuda {
namespace {

using packed_mma::kWarpTile;
using packed_tiles::kBlockN;
using packed_wgmma::kBlockM;
using packed_wgmma::kChunk;

// Microseconds on an H200: a launch, a block that begins, a chunk of K of each block of a busy multiprocessor and of one alone,
// blocks that share K, and each of them.
constexpr double kLaunch = 1.98, kFill = 2.18, kTurn = 0.737, kAlone = 0.758, kCluster = 0.942, kClusterBlock = 0.078;

packed_mma::Params lay_out(const PackedLinear& p, const PackedWgmmaConfig& c) {
  packed_mma::Params a{};
  a.p = p, a.k_warps = c.cluster;
  const packed_mma::Slice slice = packed_mma::slice_of(p.code, false);
  a.scales = kWarpTile * slice.pitch;
  a.stage_bytes = a.scales + packed_mma::lay_out_scales(a, slice.k, kWarpTile);
  a.pairs = packed_wgmma::kXStages * packed_wgmma::kXBytes + 2 * kBlockN / kWarpTile * a.stage_bytes;
  a.steps = static_cast<int>(ceil_div(ceil_div(p.K, slice.k), c.cluster));
  return a;
}

// What it takes to begin at a multiple of 1024 bytes, then stages and pairs, where the sums lie in the end.
size_t shared_bytes(const packed_mma::Params& a) {
  return 1024 + std::max(a.pairs + 2 * sizeof(float) * kBlockN * a.pairs_pitch, sizeof(float) * kBlockM * (kBlockN + 4));
}

bool takes_config(const PackedLinear& p, const PackedWgmmaConfig& c, const Device& device) {
  if (c.cluster != 1 && c.cluster != 2 && c.cluster != 4 && c.cluster != 8) return false;
  const packed_mma::Params a = lay_out(p, c);
  const bool all_have_k = int64_t{c.cluster - 1} * a.steps * packed_mma::slice_of(p.code, false).k < p.K;
  return all_have_k && ceil_div(p.M, kBlockM) <= packed_mma::kMostRowTiles &&
         shared_bytes(a) <= static_cast<size_t>(device.shared_memory);
}

double microseconds(const PackedLinear& p, const PackedWgmmaConfig& c, const Device& device) {
  const packed_mma::Params a = lay_out(p, c);
  const double sms = device.multiprocessors;
  const double blocks = static_cast<double>(ceil_div(p.M, kBlockM) * ceil_div(p.N, kBlockN)) * c.cluster;
  const double by_memory = std::floor(device.shared_memory_per_multiprocessor / static_cast<double>(shared_bytes(a) + 1024));
  const double resident = std::max(1.0, std::min<double>(by_memory, packed_wgmma::kBlocks));
  const double turns = std::max(1.0, blocks / (sms * resident)), beside = std::min(resident, std::ceil(blocks / sms));
  const double chunks = static_cast<double>(a.steps * packed_mma::slice_of(p.code, false).k / kChunk);
  const double reading = static_cast<double>(p.N * p.row_bytes) / device.bandwidth;
  return kLaunch + std::max(turns * (kFill + chunks * std::max(kAlone, beside * kTurn)), reading) +
         (c.cluster > 1 ? kCluster + kClusterBlock * c.cluster : 0);
}

packed_wgmma::Kernel kernel_of(const PackedLinear& p) {
  using namespace packed_wgmma;
  const auto of_type = [&]<class T>() {
    return packed_mma::kernels_of(p.code, kernel_of_integers<T>, kernel_of_blocks_of_32<T>, kernel_of_blocks_of_256<T>);
  };
  return p.type == Element::fp16 ? of_type.template operator()<__half>() : of_type.template operator()<__nv_bfloat16>();
}

}  // namespace

bool KernelOf<PackedWgmmaConfig>::takes(const PackedLinear& p) {
  return p.experts == 0 && p.K < int64_t{1} << 24 && KernelOf<PackedTilesConfig>::takes(p);
}

bool KernelOf<PackedWgmmaConfig>::fits(const PackedLinear& p, const PackedWgmmaConfig& c, const Device& device) {
  return takes_config(p, c, device);
}

Choice<PackedWgmmaConfig> KernelOf<PackedWgmmaConfig>::choose(const PackedLinear& p, const Device& device) {
  Choice<PackedWgmmaConfig> best;
  for (const int cluster : {1, 2, 4, 8})
    if (const PackedWgmmaConfig c{cluster}; takes_config(p, c, device)) best.consider(c, microseconds(p, c, device));
  return best;
}

cudaError_t KernelOf<PackedWgmmaConfig>::launch(const PackedLinear& p, const PackedWgmmaConfig& c, void* /*workspace*/,
                                                cudaStream_t stream) {
  const packed_wgmma::Kernel kernel = kernel_of(p);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const packed_mma::Params a = lay_out(p, c);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.N, kBlockN) * c.cluster), static_cast<unsigned>(ceil_div(p.M, kBlockM)));
  const Grid grid{blocks, packed_wgmma::kThreads, shared_bytes(a), stream, static_cast<unsigned>(c.cluster), Overlap::after_ours};
  return aoext::cuda::launch(kernel, grid, a);
}

namespace {

constexpr auto kNames = std::to_array<const char*>({"type", "code"});

std::array<int, 2> key_of(Element type, Code code) { return {static_cast<int>(type), static_cast<int>(code)}; }

}  // namespace

std::string KernelOf<PackedWgmmaConfig>::instances() {
  return instances_text(kName, kNames, [](auto&& f) {
    for (const Code code : kPackedCodes)
      for (const Element type : {Element::bf16, Element::fp16}) f(key_of(type, code));
  });
}

std::string KernelOf<PackedWgmmaConfig>::instance(const PackedLinear& p, const PackedWgmmaConfig& /*c*/) {
  return instance_text(kName, kNames, key_of(p.type, p.code));
}

}  // namespace aoext::cuda
