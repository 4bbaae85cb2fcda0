// The choice among tiles of packed_mma.cuh, and their launch.
#include "cuda/kernels/packed_mma.h"

#include <algorithm>

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

using packed_mma::kMostThreads;
constexpr int kFewRows = 8, kManyRows = 16;
// Times as long as 8 rows 16 take.
constexpr double kTimeOfMany = 1.35;
using packed_mma::kStages;
using packed_mma::kWarpTile;

int warps_n(const PackedMmaConfig& c) { return c.block_n / kWarpTile; }
int rows_of_tile(const PackedLinear& p, const PackedMmaConfig& c) { return c.block_m / p.limbs; }

int64_t row_tiles(const PackedLinear& p, const PackedMmaConfig& c) {
  return p.experts > 0 ? most_row_tiles(p.M, p.experts, rows_of_tile(p, c)) : ceil_div(p.M, rows_of_tile(p, c));
}

// Rows of limbs that a block has room for: as many as there are, or whole eights of more.
int limb_rows(const PackedLinear& p, const PackedMmaConfig& c) {
  const int most = static_cast<int>(std::min<int64_t>(rows_of_tile(p, c), p.M)) * p.limbs;
  return c.block_m == kFewRows ? most : c.block_m;
}

packed_mma::Params lay_out(const PackedLinear& p, const PackedMmaConfig& c) {
  packed_mma::Params a{};
  a.p = p;
  a.warps_n = warps_n(c), a.k_warps = c.k_warps, a.rows = rows_of_tile(p, c);
  const packed_mma::Slice slice = packed_mma::slice_of(p.code, true);
  a.scales = c.block_n * slice.pitch + limb_rows(p, c) * slice.x_pitch;
  a.slice_bytes = a.scales + packed_mma::lay_out_scales(a, slice.k, c.block_n);
  a.stage_bytes = c.k_warps * a.slice_bytes;
  a.pairs = kStages * a.stage_bytes;
  return a;
}

// The stages, in which the sums of all warps lie in the end, and pairs.
size_t shared_bytes(const packed_mma::Params& a, const PackedMmaConfig& c) {
  const size_t pairs = 2 * sizeof(float) * warps_n(c) * c.k_warps * kWarpTile * a.pairs_pitch;
  return std::max(a.pairs + pairs, sizeof(float) * c.k_warps * c.block_m * static_cast<size_t>(c.block_n + 4));
}

packed_mma::Kernel kernel_of(const PackedLinear& p, const PackedMmaConfig& c) {
  using namespace packed_mma;
  const auto of_type = [&]<class T>() {
    return kernels_of(p.code, kernels_of_integers<T>, kernels_of_blocks_of_32<T>, kernels_of_blocks_of_256<T>);
  };
  const Kernels all =
      p.type == Element::fp16 ? of_type.template operator()<__half>() : of_type.template operator()<__nv_bfloat16>();
  return p.experts > 0 ? all.of_experts : c.block_m == kFewRows ? all.of_8 : all.of_16;
}

bool takes_config(const PackedLinear& p, const PackedMmaConfig& c, const Device& device) {
  if (c.block_m != kFewRows && (c.block_m != kManyRows || p.experts > 0)) return false;
  return packed_mma::is_cut(c.block_n, c.k_warps, kMostThreads) && row_tiles(p, c) <= packed_mma::kMostRowTiles &&
         shared_bytes(lay_out(p, c), c) <= static_cast<size_t>(device.shared_memory);
}

double microseconds(const PackedLinear& p, const PackedMmaConfig& c, const Device& device) {
  const bool experts = p.experts > 0;
  const double tiles_m = experts ? expected_row_tiles(p.M, p.experts, rows_of_tile(p, c)) : static_cast<double>(row_tiles(p, c));
  const double x_bytes = 2.0 * limb_rows(p, c) * static_cast<double>(p.K);
  const packed_mma::Cut cut{c.block_n,         c.k_warps,
                            /*registers=*/128, tiles_m * static_cast<double>(ceil_div(p.N, c.block_n)),
                            x_bytes,           shared_bytes(lay_out(p, c), c)};
  return packed_mma::time_of_slices(p, cut, experts ? std::min(tiles_m, experts_hit(p.M, p.experts)) : 1,
                                    fits_of(device).packed_mma, device);
}

}  // namespace

bool KernelOf<PackedMmaConfig>::takes(const PackedLinear& p) { return packed_mma::can_read(p); }

bool KernelOf<PackedMmaConfig>::fits(const PackedLinear& p, const PackedMmaConfig& c, const Device& device) {
  return takes_config(p, c, device);
}

Choice<PackedMmaConfig> KernelOf<PackedMmaConfig>::choose(const PackedLinear& p, const Device& device) {
  Choice<PackedMmaConfig> best;
  // 16 rows where that is all there are, or no other kernel takes more.
  const int64_t rows = p.M * p.limbs;
  const bool many = p.experts == 0 && rows > kFewRows && (rows <= kManyRows || p.limbs > 1);
  packed_mma::for_each_cut([&](int block_n, int k_warps) {
    for (const int block_m : {kFewRows, kManyRows})
      if (const PackedMmaConfig c{block_n, block_m, k_warps}; (block_m == kFewRows || many) && takes_config(p, c, device))
        best.consider(c, microseconds(p, c, device));
  });
  return best;
}

cudaError_t KernelOf<PackedMmaConfig>::launch(const PackedLinear& p, const PackedMmaConfig& c, void* /*workspace*/,
                                              cudaStream_t stream) {
  const packed_mma::Kernel kernel = kernel_of(p, c);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const packed_mma::Params a = lay_out(p, c);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.N, c.block_n)), static_cast<unsigned>(row_tiles(p, c)));
  const dim3 threads(32 * a.warps_n * a.k_warps);
  return aoext::cuda::launch(kernel, Grid{blocks, threads, shared_bytes(a, c), stream, 1, Overlap::after_ours}, a);
}

namespace {

constexpr auto kNames = std::to_array<const char*>({"type", "code", "block_m", "experts"});

std::array<int, 4> key_of(Element type, Code code, int block_m, bool experts) {
  return {static_cast<int>(type), static_cast<int>(code), block_m, experts ? 1 : 0};
}

}  // namespace

std::string KernelOf<PackedMmaConfig>::instances() {
  return instances_text(kName, kNames, [](auto&& f) {
    for (const Code code : kPackedCodes)
      for (const Element type : {Element::bf16, Element::fp16}) {
        f(key_of(type, code, kFewRows, false)), f(key_of(type, code, kManyRows, false));
        f(key_of(type, code, kFewRows, true));
      }
  });
}

std::string KernelOf<PackedMmaConfig>::instance(const PackedLinear& p, const PackedMmaConfig& c) {
  return instance_text(kName, kNames, key_of(p.type, p.code, c.block_m, p.experts > 0));
}

}  // namespace aoext::cuda
