// Tiles of rowwise_mma, the choice among them and their launch.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/rowwise_mma.cuh"
#include "cuda/kernels/rowwise_mma.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace rowwise_mma {
namespace {

template <class Kind, class Narrow, class Wide>
using ByX = std::conditional_t<Kind::kWideX, Wide, Narrow>;

// For few rows a block has 32 output channels and its warps split K, so that there are enough blocks without partial sums in
// global memory; the more rows, the larger the tile, which reads less from L2. Two blocks fit a multiprocessor with 164 KB of
// shared memory, one the 99 KB of sm_86 and sm_89; of the first and the last tile one fits either. Sums of mma on float8 take
// twice the registers, hence eight smaller warps.
// clang-format off
//                                               warps N, M, K  warp N, M  block_k  stages      KB of shared memory
template <class Kind>
using Tile32x32 = ByX<Kind,                 Tile<1, 1, 4,       32, 32,    128,     3>,      // 96
                                            Tile<1, 1, 4,       32, 32,    64,      3>>;     // 72
using Tile128x32 =                          Tile<4, 1, 1,       32, 32,    128,     3>;      // 60, 72
using DeepTile128x64 =                      Tile<2, 2, 1,       64, 32,    128,     3>;      // 72
using Tile128x64 =                          Tile<2, 2, 1,       64, 32,    64,      4>;      // 48, 64
template <class Kind>
using Tile128x128 = ByX<Kind,               Tile<2, 2, 1,       64, 64,    64,      4>,      // 64
                                            Tile<2, 2, 1,       64, 64,    64,      3>>;     // 72
using Float8Tile128x128 =                   Tile<2, 4, 1,       64, 32,    64,      4>;      // 64
using Tile256x128 =                         Tile<4, 2, 1,       64, 64,    64,      4>;      // 96
// clang-format on

// With M rows, and K split over blocks, the time in µs is about
//   step · (64-deep steps of a block + fill_steps) · max(blocks of a multiprocessor, filled)
//     + split + split_mb per MB of partial sums written and read, if K is split,
// or what reading the weights takes, if that is more. Other GPUs than the one that was measured have other numbers, but the
// choice needs only their ratios.
constexpr int kMaxSplits = 16, kMinK = 256;

constexpr int64_t kMost = int64_t{1} << 30;  // of M, N and K: what a block counts in ints
constexpr int64_t kMostInt8 = 131071;        // k whose sum fits an int

int64_t tiles(const RowwiseLinear& p, const RowwiseMmaConfig& c) { return ceil_div(p.N, c.block_n) * ceil_div(p.M, c.block_m); }

size_t partials_bytes(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  return static_cast<size_t>(tiles(p, c)) * c.splits * c.block_n * c.block_m * sizeof(float);
}

// Tiles that there are for experts.
template <class T>
constexpr bool kHasExperts = T::kBlockN == 128 && (T::kBlockM == 32 || T::kBlockM == 128);

template <class Kind, class T>
cudaError_t launch(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
  if (c.splits > 1 && T::kWarpsK > 1) return cudaErrorInvalidValue;
  constexpr int kBytes = T::kStages * T::template kStageBytes<Kind>;
  Params a{};
  a.p = p;
  a.tiles_n = static_cast<int>(ceil_div(p.N, T::kBlockN));
  a.tiles_m = static_cast<int>(ceil_div(p.M, T::kBlockM));
  a.steps = static_cast<int>(ceil_div(p.K, int64_t{T::kStageK} * c.splits));
  a.vector_y = p.N % 8 == 0 && is_aligned(p.y);
  if constexpr (kHasExperts<T>) {
    if (p.experts > 0) {
      const dim3 grid(static_cast<unsigned>(a.tiles_n), 1, static_cast<unsigned>(most_row_tiles(p.M, p.experts, T::kBlockM)));
      return launch(rowwise_mma_of_experts<Kind, T>, Grid{grid, T::kThreads, kBytes, stream, 1, Overlap::never}, a);
    }
  }
  const dim3 grid(static_cast<unsigned>(tiles(p, c)), static_cast<unsigned>(ceil_div(p.K, int64_t{a.steps} * T::kStageK)));
  if (grid.y > 1) {
    a.partials = workspace;
    a.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partials_bytes(p, c));
    const cudaError_t cleared = cudaMemsetAsync(a.counters, 0, grid.x * sizeof(unsigned), stream);
    if (cleared != cudaSuccess) return cleared;
  }
  return launch(rowwise_mma_kernel<Kind, T>, Grid{grid, T::kThreads, kBytes, stream, 1, Overlap::never}, a);
}

// Whether a grid holds the tiles of rows.
bool takes_experts(const RowwiseLinear& p) {
  return p.experts == 0 || (most_row_tiles(p.M, p.experts, 32) <= 65535 && p.experts < int64_t{1} << 31);
}

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"type", "weight", "float8", "block_n", "block_m", "experts"};

// f(Tile{}) of each of a kind.
template <class Kind, class F>
void for_each_tile(F&& f) {
  f(Tile32x32<Kind>());
  f(Tile128x32());
  f(std::conditional_t<Kind::kWideX || Kind::kFloat8, Tile128x64, DeepTile128x64>());
  f(std::conditional_t<Kind::kFloat8, Float8Tile128x128, Tile128x128<Kind>>());
  if constexpr (Kind::kInt8) f(Tile256x128());
}

// f(key, Kind{}, Tile{}) of each: x of the weight's type, float8 as it is or as fp16, or of 16 bits.
template <class F>
void for_each_instance(F&& f) {
  each<Element::int8, Element::e4m3, Element::e5m2>([&](auto w) {
    constexpr Element W = decltype(w)::value;
    const auto kind = [&](auto kind, Element x, int float8) {
      for_each_tile<decltype(kind)>([&](auto tile) {
        using T = decltype(tile);
        const auto key = [&](int experts) { return Key{int(x), int(W), float8, T::kBlockN, T::kBlockM, experts}; };
        f(key(0), kind, tile);
        if constexpr (kHasExperts<T>) f(key(1), kind, tile);
      });
    };
    kind(Kind<W, W>(), W, 0);
    if constexpr (W != Element::int8) kind(Kind<W, W, true>(), W, 1);
    kind(Kind<Element::bf16, W>(), Element::bf16, 0);
    kind(Kind<Element::fp16, W>(), Element::fp16, 0);
  });
}

Key key_of(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  return {int(p.type), int(p.weight_type), c.float8, c.block_n, c.block_m, p.experts > 0};
}

}  // namespace
}  // namespace rowwise_mma

bool KernelOf<RowwiseMmaConfig>::takes(const RowwiseLinear& p) {
  using namespace rowwise_mma;
  const bool wide = p.type == Element::bf16 || p.type == Element::fp16, int8 = p.type == Element::int8;
  if (!is_8bit(p.weight_type) || !(wide || p.type == p.weight_type)) return false;
  const bool writes = p.output == Element::bf16 || p.output == Element::fp16 || (p.output == Element::fp32 && !wide) ||
                      (p.output == Element::int32 && int8);
  return writes && p.K % 16 == 0 && std::max({p.M, p.N, p.K}) <= kMost && (!int8 || p.K <= kMostInt8) &&
         tiles(p, {32, 32, 1, 0}) <= std::numeric_limits<int>::max() && is_aligned(p.x) && is_aligned(p.weight) &&
         takes_experts(p);
}

Choice<RowwiseMmaConfig> KernelOf<RowwiseMmaConfig>::choose(const RowwiseLinear& p, const Device& device) {
  using namespace rowwise_mma;
  const RowwiseMmaFit& fit = fits_of(device).rowwise_mma;
  const int sms = device.multiprocessors;
  Choice<RowwiseMmaConfig> best;
  const bool int8 = p.type == Element::int8, wide = !is_8bit(p.type);
  const int float8 = device.float8_units && !int8 && !wide && p.output != Element::fp32;
  const Element x = int8 ? Element::int8 : wide ? Element::bf16 : Element::e4m3;
  for (const MmaFit::Tile& cost : fit.tiles) {
    if (cost.x != x) continue;
    if (p.experts > 0) {
      const RowwiseMmaConfig c{cost.block_n, cost.block_m, 1, float8};
      const double tiles = expected_row_tiles(p.M, p.experts, c.block_m) * ceil_div(p.N, c.block_n);
      const double steps = ceil_div(p.K, 64) + fit.fill_steps;
      if (fits(p, c)) best.consider(c, cost.step * steps * std::max(std::ceil(tiles / sms), cost.filled));
      continue;
    }
    const int64_t unsplit = tiles(p, {cost.block_n, cost.block_m, 1, 0});
    const bool splits_k = cost.block_n > 32 && unsplit <= 2 * sms;
    const int64_t most = splits_k ? std::clamp<int64_t>(p.K / kMinK, 1, kMaxSplits) : 1;
    for (int splits = 1; splits <= most; ++splits) {
      const RowwiseMmaConfig c{cost.block_n, cost.block_m, splits, float8};
      double us = cost.step * (ceil_div(p.K, 64 * splits) + fit.fill_steps) *
                  std::max<double>(ceil_div(unsplit * splits, sms), cost.filled);
      if (splits > 1) us += fit.split + fit.split_mb * 2e-6 * static_cast<double>(partials_bytes(p, c));
      best.consider(c, us);
    }
  }
  return best;
}

bool KernelOf<RowwiseMmaConfig>::fits(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  using namespace rowwise_mma;
  if (c.splits < 1 || c.splits > kMaxSplits || c.float8 < 0 || c.float8 > 1) return false;
  if (c.float8 && (p.output == Element::fp32 || p.type == Element::int8 || !is_8bit(p.type))) return false;
  bool found = false;
  for_each_instance([&, key = key_of(p, c)](const Key& k, auto, auto tile) {
    found = found ||
            (k == key &&
             (c.splits == 1 || (decltype(tile)::kWarpsK == 1 && p.experts == 0)));  // one whose warps share K does not split it
  });
  return found;
}

size_t KernelOf<RowwiseMmaConfig>::workspace(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  using namespace rowwise_mma;
  return c.splits == 1 ? 0 : partials_bytes(p, c) + tiles(p, c) * sizeof(unsigned);
}

cudaError_t KernelOf<RowwiseMmaConfig>::launch(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace,
                                               cudaStream_t stream) {
  using namespace rowwise_mma;
  if (!fits(p, c)) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  for_each_instance([&, key = key_of(p, c)](const Key& k, auto kind, auto tile) {
    if (k == key) error = rowwise_mma::launch<decltype(kind), decltype(tile)>(p, c, workspace, stream);
  });
  return error;
}

std::string KernelOf<RowwiseMmaConfig>::instances() {
  return instances_text(kName, rowwise_mma::kKeyNames, [](auto&& f) { rowwise_mma::for_each_instance(f); });
}

std::string KernelOf<RowwiseMmaConfig>::instance(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  return instance_text(kName, rowwise_mma::kKeyNames, rowwise_mma::key_of(p, c));
}

}  // namespace aoext::cuda
