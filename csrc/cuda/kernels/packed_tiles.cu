// The choice among tiles of packed_tiles.cuh, and their launch.
#include "cuda/kernels/packed_tiles.h"

#include <algorithm>
#include <cmath>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/packed_mma_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace aoext::cuda {
namespace {

using packed_tiles::kBlockM;
using packed_tiles::kBlockN;
using packed_tiles::kChunk;

// Fewer output columns than this, and rounding each weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 64;

int64_t row_tiles(const PackedLinear& p) {
  return p.experts > 0 ? most_row_tiles(p.M, p.experts, kBlockM) : ceil_div(p.M, kBlockM);
}

packed_mma::Params lay_out(const PackedLinear& p, const PackedTilesConfig& c) {
  packed_mma::Params a{};
  a.p = p, a.k_warps = c.cluster, a.rows = kBlockM;
  const packed_mma::Slice slice = packed_mma::slice_of(p.code, false);
  a.stage_bytes = kBlockN * slice.pitch + packed_mma::lay_out_scales(a, slice.k, kBlockN);
  a.pairs = 2 * a.stage_bytes + packed_tiles::kXStages * kBlockM * packed_tiles::kXPitch;
  a.steps = static_cast<int>(ceil_div(ceil_div(p.K, slice.k), c.cluster));
  return a;
}

// Stages and pairs, where the sums lie in the end.
size_t shared_bytes(const packed_mma::Params& a) {
  return std::max(a.pairs + 2 * sizeof(float) * kBlockN * a.pairs_pitch, sizeof(float) * a.rows * (kBlockN + 4));
}

packed_tiles::Kernel kernel_of(const PackedLinear& p) {
  using namespace packed_tiles;
  const auto of_type = [&]<class T>() {
    return packed_mma::kernels_of(p.code, kernels_of_integers<T>, kernels_of_blocks_of_32<T>, kernels_of_blocks_of_256<T>);
  };
  const Kernels all =
      p.type == Element::fp16 ? of_type.template operator()<__half>() : of_type.template operator()<__nv_bfloat16>();
  return p.experts > 0 ? all.of_experts : all.dense;
}

bool takes_config(const PackedLinear& p, const PackedTilesConfig& c, const Device& device) {
  if (c.cluster != 1 && (p.experts > 0 || (c.cluster != 2 && c.cluster != 4 && c.cluster != 8))) return false;
  const packed_mma::Params a = lay_out(p, c);
  const bool all_have_k = int64_t{c.cluster - 1} * a.steps * packed_mma::slice_of(p.code, false).k < p.K;
  return all_have_k && row_tiles(p) <= packed_mma::kMostRowTiles && shared_bytes(a) <= static_cast<size_t>(device.shared_memory);
}

// Chunks of K of all blocks, turn by turn.
double microseconds(const PackedLinear& p, const PackedTilesConfig& c, const Device& device) {
  const PackedTilesFit& fit = fits_of(device).packed_tiles;
  const packed_mma::Params a = lay_out(p, c);
  const double sms = device.multiprocessors;
  const bool experts = p.experts > 0;
  const double tiles_m = experts ? expected_row_tiles(p.M, p.experts, a.rows) : static_cast<double>(row_tiles(p));
  const double blocks = tiles_m * static_cast<double>(ceil_div(p.N, kBlockN)) * c.cluster;
  const double by_memory = std::floor(device.shared_memory_per_multiprocessor / static_cast<double>(shared_bytes(a) + 1024));
  const double resident = std::max(1.0, std::min<double>(by_memory, packed_tiles::kBlocks + 1));
  const double turns = std::max(1.0, blocks / (sms * resident)), beside = std::min(resident, std::ceil(blocks / sms));
  const double columns = kBlockM / 8.0, chunks = static_cast<double>(a.steps * packed_mma::slice_of(p.code, false).k / kChunk);
  const double chunk = std::max(fit.alone + fit.alone_column * columns, beside * (fit.turn + fit.turn_column * columns));
  const double weights = experts ? std::min(tiles_m, experts_hit(p.M, p.experts)) : 1;
  const double reading = weights * static_cast<double>(p.N * p.row_bytes) / device.bandwidth;
  return fit.launch + std::max(turns * (fit.fill + chunks * chunk), reading) +
         (c.cluster > 1 ? fit.cluster + fit.cluster_block * c.cluster : 0);
}

}  // namespace

bool KernelOf<PackedTilesConfig>::takes(const PackedLinear& p) {
  return packed_mma::can_read(p) && p.limbs == 1 && p.N >= kRoundedColumns && p.output == p.type;
}

bool KernelOf<PackedTilesConfig>::fits(const PackedLinear& p, const PackedTilesConfig& c, const Device& device) {
  return takes_config(p, c, device);
}

Choice<PackedTilesConfig> KernelOf<PackedTilesConfig>::choose(const PackedLinear& p, const Device& device) {
  Choice<PackedTilesConfig> best;
  for (int cluster = 1; cluster <= (device.features.clusters ? 8 : 1); cluster *= 2)
    if (const PackedTilesConfig c{cluster}; takes_config(p, c, device)) best.consider(c, microseconds(p, c, device));
  return best;
}

cudaError_t KernelOf<PackedTilesConfig>::launch(const PackedLinear& p, const PackedTilesConfig& c, void* /*workspace*/,
                                                cudaStream_t stream) {
  const packed_tiles::Kernel kernel = kernel_of(p);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const packed_mma::Params a = lay_out(p, c);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.N, kBlockN) * c.cluster), static_cast<unsigned>(row_tiles(p)));
  const Grid grid{blocks, packed_tiles::kThreads, shared_bytes(a), stream, static_cast<unsigned>(c.cluster), Overlap::after_ours};
  return aoext::cuda::launch(kernel, grid, a);
}

namespace {

constexpr auto kNames = std::to_array<const char*>({"type", "code", "experts"});

std::array<int, 3> key_of(Element type, Code code, bool experts) {
  return {static_cast<int>(type), static_cast<int>(code), experts ? 1 : 0};
}

}  // namespace

std::string KernelOf<PackedTilesConfig>::instances() {
  return instances_text(kName, kNames, [](auto&& f) {
    for (const Code code : kPackedCodes)
      for (const Element type : {Element::bf16, Element::fp16})
        for (const bool experts : {false, true}) f(key_of(type, code, experts));
  });
}

std::string KernelOf<PackedTilesConfig>::instance(const PackedLinear& p, const PackedTilesConfig& /*c*/) {
  return instance_text(kName, kNames, key_of(p.type, p.code, p.experts > 0));
}

}  // namespace aoext::cuda
