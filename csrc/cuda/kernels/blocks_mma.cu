// Tiles of rowwise_mma.cuh for weights with a scale a block, the choice among them and their launch.
#include "cuda/kernels/blocks_mma.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/fits.h"
#include "cuda/kernels/arrange_scales.cuh"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/rowwise_mma.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using rowwise_mma::BlockKind;
using rowwise_mma::kScaleK;
using rowwise_mma::Params;
using rowwise_mma::Tile;

// Two blocks fit a multiprocessor with 164 KB of shared memory, one the 99 KB of sm_86 and sm_89.
// clang-format off
//                      warps N, M, K  warp N, M  block_k  stages      KB of shared memory, of 8 bits
using Tile32x32 =   Tile<1, 1, 4,      32, 32,    64,      3>;      // 75
using Tile128x32 =  Tile<4, 1, 1,      32, 32,    64,      4>;      // 52
using Tile128x128 = Tile<2, 2, 1,      64, 64,    64,      3>;      // 75
// clang-format on

constexpr int kMaxSplits = 16, kMinK = 256;
constexpr int64_t kMost = int64_t{1} << 30;  // of M, N and K: what a block counts in ints

bool is_table(const BlockLinear& p) { return p.weight_type == Element::lut4; }

int64_t tiles(const BlockLinear& p, const BlocksMmaConfig& c) { return ceil_div(p.N, c.block_n) * ceil_div(p.M, c.block_m); }

size_t partials_bytes(const BlockLinear& p, const BlocksMmaConfig& c) {
  return c.splits == 1 ? 0 : static_cast<size_t>(tiles(p, c)) * c.splits * c.block_n * c.block_m * sizeof(float);
}

// The workspace: sums of splits, the counters of their tiles, then what is arranged.
struct Workspace {
  void* partials;
  unsigned* counters;
  Arranged arranged;
  size_t bytes;
};

Workspace lay_out(const BlockLinear& p, const BlocksMmaConfig& c, void* workspace) {
  const auto round = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t weights = std::max<int64_t>(p.experts, 1);
  const size_t row_bytes = round(sizeof(float) * p.N * weights);
  Workspace w{};
  Arranged& a = w.arranged;
  a.groups = ceil_div(p.K, kScaleK), a.stride = ceil_div(p.N, 8) * 8;
  char* at = static_cast<char*>(workspace);
  w.partials = at, at += round(partials_bytes(p, c));
  w.counters = reinterpret_cast<unsigned*>(at), at += c.splits == 1 ? 0 : round(tiles(p, c) * sizeof(unsigned));
  a.table = reinterpret_cast<Table16*>(at), at += 256;
  a.factor = reinterpret_cast<float*>(at), at += row_bytes;
  if (relative_scales(p)) a.largest = reinterpret_cast<float*>(at), at += row_bytes;
  a.scales = at, at += weights * a.groups * a.stride * 2;
  w.bytes = static_cast<size_t>(at - static_cast<char*>(workspace));
  return w;
}

// Tiles that there are for experts.
template <class T>
constexpr bool kHasExperts = T::kBlockN == 128;

template <class Kind, class T>
cudaError_t launch_typed(const BlockLinear& p, const BlocksMmaConfig& c, void* workspace, cudaStream_t stream) {
  constexpr int kBytes = T::kStages * T::template kStageBytes<Kind>;
  const Workspace w = lay_out(p, c, workspace);
  const cudaError_t arranged = arrange<typename Kind::Value, kScaleK>(p, w.arranged, Overlap::never, stream);
  if (arranged != cudaSuccess) return arranged;
  Params a{};
  a.p = p, a.p.scale = w.arranged.factor, a.p.scale_type = Element::fp32;
  a.tiles_n = static_cast<int>(ceil_div(p.N, T::kBlockN));
  a.tiles_m = static_cast<int>(ceil_div(p.M, T::kBlockM));
  a.steps = static_cast<int>(ceil_div(p.K, int64_t{T::kStageK} * c.splits));
  a.vector_y = p.N % 8 == 0 && is_aligned(p.y);
  a.partials = w.partials, a.counters = w.counters;
  a.scales = w.arranged.scales, a.groups = w.arranged.groups, a.stride = w.arranged.stride, a.table = w.arranged.table;
  if constexpr (kHasExperts<T>) {
    if (p.experts > 0) {
      const dim3 grid(static_cast<unsigned>(a.tiles_n), 1, static_cast<unsigned>(most_row_tiles(p.M, p.experts, T::kBlockM)));
      const auto kernel = rowwise_mma::rowwise_mma_of_experts<Kind, T>;
      return launch(kernel, Grid{grid, T::kThreads, kBytes, stream, 1, Overlap::never}, a);
    }
  }
  const dim3 grid(static_cast<unsigned>(tiles(p, c)), static_cast<unsigned>(ceil_div(p.K, int64_t{a.steps} * T::kStageK)));
  if (grid.y > 1) {
    const cudaError_t cleared = cudaMemsetAsync(a.counters, 0, grid.x * sizeof(unsigned), stream);
    if (cleared != cudaSuccess) return cleared;
  }
  return launch(rowwise_mma::rowwise_mma_kernel<Kind, T>, Grid{grid, T::kThreads, kBytes, stream, 1, Overlap::never}, a);
}

// What tells instances apart.
using Key = std::array<int, 5>;
constexpr std::array<const char*, 5> kKeyNames = {"type", "weight", "block_n", "block_m", "experts"};

// f(key, Kind{}, Tile{}) of each. A stage of the smallest tile has too few bytes of 4-bit codes for all of its threads.
template <class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<Element::int8, Element::e4m3, Element::e5m2, Element::lut4>([&](auto w) {
      constexpr Element X = decltype(x)::value, W = decltype(w)::value;
      const auto with = [&](auto tile) {
        using T = decltype(tile);
        f(Key{int(X), int(W), T::kBlockN, T::kBlockM, 0}, BlockKind<X, W>(), tile);
        if constexpr (kHasExperts<T>) f(Key{int(X), int(W), T::kBlockN, T::kBlockM, 1}, BlockKind<X, W>(), tile);
      };
      if constexpr (W != Element::lut4) with(Tile32x32());
      with(Tile128x32());
      with(Tile128x128());
    });
  });
}

Key key_of(const BlockLinear& p, const BlocksMmaConfig& c) {
  return {int(p.type), int(p.weight_type), c.block_n, c.block_m, p.experts > 0};
}

}  // namespace

bool KernelOf<BlocksMmaConfig>::takes(const BlockLinear& p) {
  const bool codes = is_8bit(p.weight_type) || is_table(p), blocks = p.block_k >= p.K || p.block_k % kScaleK == 0;
  return (p.type == Element::bf16 || p.type == Element::fp16) && p.output == p.type && codes && blocks &&
         row_bytes(p) % 16 == 0 && p.K % kScaleK == 0 && std::max({p.M, p.N, p.K}) <= kMost &&
         tiles(p, {32, 32, 1}) <= std::numeric_limits<int>::max() && is_aligned(p.x) && is_aligned(p.weight) &&
         (p.experts == 0 || (most_row_tiles(p.M, p.experts, 32) <= 65535 && p.experts < int64_t{1} << 31));
}

Choice<BlocksMmaConfig> KernelOf<BlocksMmaConfig>::choose(const BlockLinear& p, const Device& device) {
  const RowwiseMmaFit& fit = fits_of(device).rowwise_mma;
  const int sms = device.multiprocessors;
  Choice<BlocksMmaConfig> best;
  for (const MmaFit::Tile& cost : fit.tiles) {
    BlocksMmaConfig c{cost.block_n, cost.block_m, 1};
    if (cost.x != Element::bf16 || !fits(p, c)) continue;
    if (p.experts > 0) {
      const double tiles = expected_row_tiles(p.M, p.experts, c.block_m) * ceil_div(p.N, c.block_n);
      const double steps = ceil_div(p.K, 64) + fit.fill_steps;
      best.consider(c, cost.step * steps * std::max(std::ceil(tiles / sms), cost.filled));
      continue;
    }
    const int64_t unsplit = tiles(p, c);
    const bool splits_k = cost.block_n > 32 && unsplit <= 2 * sms;
    const int most = splits_k ? static_cast<int>(std::clamp<int64_t>(p.K / kMinK, 1, kMaxSplits)) : 1;
    for (c.splits = 1; c.splits <= most; ++c.splits) {
      double us = cost.step * (ceil_div(p.K, 64 * c.splits) + fit.fill_steps) *
                  std::max<double>(ceil_div(unsplit * c.splits, sms), cost.filled);
      if (c.splits > 1) us += fit.split + fit.split_mb * 2e-6 * static_cast<double>(partials_bytes(p, c));
      best.consider(c, us);
    }
  }
  return best;
}

bool KernelOf<BlocksMmaConfig>::fits(const BlockLinear& p, const BlocksMmaConfig& c) {
  if (c.splits < 1 || c.splits > kMaxSplits) return false;
  bool found = false;
  for_each_instance([&, key = key_of(p, c)](const Key& k, auto, auto tile) {
    found = found ||
            (k == key &&
             (c.splits == 1 || (decltype(tile)::kWarpsK == 1 && p.experts == 0)));  // one whose warps share K does not split it
  });
  return found;
}

size_t KernelOf<BlocksMmaConfig>::workspace(const BlockLinear& p, const BlocksMmaConfig& c) {
  return lay_out(p, c, nullptr).bytes;
}

cudaError_t KernelOf<BlocksMmaConfig>::launch(const BlockLinear& p, const BlocksMmaConfig& c, void* workspace,
                                              cudaStream_t stream) {
  if (!fits(p, c)) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  for_each_instance([&, key = key_of(p, c)](const Key& k, auto kind, auto tile) {
    if (k == key) error = launch_typed<decltype(kind), decltype(tile)>(p, c, workspace, stream);
  });
  return error;
}

std::string KernelOf<BlocksMmaConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<BlocksMmaConfig>::instance(const BlockLinear& p, const BlocksMmaConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
