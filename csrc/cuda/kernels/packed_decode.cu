// The choice among cuts of packed_decode.cuh, and their launch.
#include "cuda/kernels/packed_decode.h"

#include <algorithm>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/packed_mma_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace aoext::cuda {
namespace {

using packed_decode::kMostThreads;
using packed_mma::kWarpTile;

// As an H200 has them.
constexpr PackedMmaFit kFit{.launch = 2.34, .fill = 3.46, .alone = 0.986, .turn = 0.061, .caches = 1.34, .narrow = 0.017};
constexpr int64_t kPadding = 512;  // k that x is filled up to a multiple of

// The k that have a column of their own: 64 of words of two bits whose groups are long, else 16 or 32; their logarithm.
int run_log2_of(const PackedLinear& p, int scale_k) {
  if (p.code == Code::int2 && scale_k == 128) return 6;
  return (has_scales_beside(p.code) ? scale_k : layout_of(p.code).group) == 16 ? 4 : 5;
}

packed_mma::Params lay_out(const PackedLinear& p, const PackedDecodeConfig& c) {
  packed_mma::Params a{};
  a.p = p;
  a.warps_n = c.block_n / kWarpTile, a.k_warps = c.k_warps;
  const packed_mma::Slice slice = packed_mma::slice_of(p.code, true);
  a.scales = kWarpTile * slice.pitch;
  a.stage_bytes = a.scales + packed_mma::lay_out_scales(a, slice.k, kWarpTile);
  a.pairs = a.warps_n * a.k_warps * packed_mma::kStages * a.stage_bytes;
  a.run_log2 = run_log2_of(p, a.scale_k), a.steps = static_cast<int>(ceil_div(p.K, kPadding) * kPadding);
  return a;
}

// The stages, x and its sums.
size_t shared_bytes(const packed_mma::Params& a) {
  return static_cast<size_t>(a.pairs) + static_cast<size_t>(a.steps) * 2 + 2 * sizeof(float) * (a.steps >> a.run_log2);
}

bool takes_config(const PackedLinear& p, const PackedDecodeConfig& c, const Device& device) {
  return packed_mma::is_cut(c.block_n, c.k_warps, kMostThreads) &&
         shared_bytes(lay_out(p, c)) <= static_cast<size_t>(device.shared_memory);
}

packed_decode::Kernel kernel_of(const PackedLinear& p) {
  using namespace packed_decode;
  const auto of_type = [&]<class T>() {
    return packed_mma::kernels_of(p.code, kernel_of_integers<T>, kernel_of_blocks_of_32<T>, kernel_of_blocks_of_256<T>);
  };
  return p.type == Element::fp16 ? of_type.template operator()<__half>() : of_type.template operator()<__nv_bfloat16>();
}

}  // namespace

bool KernelOf<PackedDecodeConfig>::takes(const PackedLinear& p) {
  return packed_mma::can_read(p) && p.M == 1 && p.limbs == 1 && p.experts == 0;
}

bool KernelOf<PackedDecodeConfig>::fits(const PackedLinear& p, const PackedDecodeConfig& c, const Device& device) {
  return takes_config(p, c, device);
}

Choice<PackedDecodeConfig> KernelOf<PackedDecodeConfig>::choose(const PackedLinear& p, const Device& device) {
  Choice<PackedDecodeConfig> best;
  packed_mma::for_each_cut([&](int block_n, int k_warps) {
    const PackedDecodeConfig c{block_n, k_warps};
    if (!takes_config(p, c, device)) return;
    const packed_mma::Cut cut{block_n,
                              k_warps,
                              /*registers=*/80,
                              static_cast<double>(ceil_div(p.N, block_n)),
                              2.0 * static_cast<double>(p.K),
                              shared_bytes(lay_out(p, c))};
    best.consider(c, packed_mma::time_of_slices(p, cut, 1, kFit, device));
  });
  return best;
}

cudaError_t KernelOf<PackedDecodeConfig>::launch(const PackedLinear& p, const PackedDecodeConfig& c, void* /*workspace*/,
                                                 cudaStream_t stream) {
  const packed_decode::Kernel kernel = kernel_of(p);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const packed_mma::Params a = lay_out(p, c);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.N, c.block_n))), threads(32 * a.warps_n * a.k_warps);
  return aoext::cuda::launch(kernel, Grid{blocks, threads, shared_bytes(a), stream, 1, Overlap::after_ours}, a);
}

namespace {

constexpr auto kNames = std::to_array<const char*>({"type", "code"});

std::array<int, 2> key_of(Element type, Code code) { return {static_cast<int>(type), static_cast<int>(code)}; }

}  // namespace

std::string KernelOf<PackedDecodeConfig>::instances() {
  return instances_text(kName, kNames, [](auto&& f) {
    for (const Code code : kPackedCodes)
      for (const Element type : {Element::bf16, Element::fp16}) f(key_of(type, code));
  });
}

std::string KernelOf<PackedDecodeConfig>::instance(const PackedLinear& p, const PackedDecodeConfig& /*c*/) {
  return instance_text(kName, kNames, key_of(p.type, p.code));
}

}  // namespace aoext::cuda
