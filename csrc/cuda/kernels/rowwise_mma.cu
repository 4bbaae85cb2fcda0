// Tiles of rowwise_mma, the choice among them and their launch.
#include <algorithm>
#include <limits>

#include "cuda/kernels/int4.h"
#include "cuda/kernels/rowwise_mma.cuh"
#include "cuda/kernels/rowwise_mma.h"

namespace aoext::cuda {
namespace rowwise_mma {
namespace {

struct Cost {
  int block_n, block_m;
  double us, filled;
};
constexpr Cost kCosts[] = {{128, 32, 0.274, 1.15}, {128, 64, 0.387, 1.67}, {256, 128, 1.1, 1.0}};
constexpr double kSplitCost = 3.1, kCostPerMB = 0.3;
constexpr int kMaxSplits = 16, kMinK = 256;

// clang-format off
using Tile32 =  Tile<4, 1,      32, 32,    128,     3, 3, 2>;
using Tile64 =  Tile<2, 2,      64, 32,    64,      4, 4, 2>;
using Tile64b =  Tile<2, 2,      64, 32,    128,     3, 3, 2>;
using Tile128 = Tile<2, 2,      64, 64,   64,      3, 3, 2>;
using Tile128b = Tile<2, 2,      64, 64,   128,      3, 2, 2>;
using Tile256 = Tile<4, 2,      64, 64,   64,      4, 3, 1>;
using Tile256b = Tile<4, 2,      64, 64,   128,      3, 2, 1>;
// clang-format on

constexpr int64_t kMostK = int64_t{1} << 30, kMostInt8 = 131071;  // k of a block fits an int; so does the sum of int8

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
bool is_float8(Element e) { return e == Element::e4m3 || e == Element::e5m2; }

int64_t tiles(const RowwiseLinear& p, const RowwiseMmaConfig& c) { return ceil_div(p.N, c.block_n) * ceil_div(p.M, c.block_m); }

size_t partials_bytes(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  return static_cast<size_t>(tiles(p, c)) * c.splits * c.block_n * c.block_m * sizeof(float);
}

template <class Kind, class T>
cudaError_t launch(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
  constexpr int kBytes = T::template kStages<Kind> * T::template kStageBytes<Kind>;
  const cudaError_t error =
      cudaFuncSetAttribute(rowwise_mma_kernel<Kind, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  Problem a{};
  a.p = p;
  a.tiles_n = static_cast<int>(ceil_div(p.N, T::kBlockN));
  a.tiles_m = static_cast<int>(ceil_div(p.M, T::kBlockM));
  a.steps = static_cast<int>(ceil_div(p.K, int64_t{T::kBlockK} * c.splits));
  a.vector_y = p.N % 8 == 0 && is_aligned(p.y);
  const dim3 grid(static_cast<unsigned>(tiles(p, c)), static_cast<unsigned>(ceil_div(p.K, int64_t{a.steps} * T::kBlockK)));
  if (grid.y > 1) {
    a.partials = workspace;
    a.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partials_bytes(p, c));
    const cudaError_t cleared = cudaMemsetAsync(a.counters, 0, grid.x * sizeof(unsigned), stream);
    if (cleared != cudaSuccess) return cleared;
  }
  rowwise_mma_kernel<Kind, T><<<grid, T::kThreads, kBytes, stream>>>(a);
  return cudaGetLastError();
}

template <class Kind>
cudaError_t launch_tile(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
#ifdef CUTS
  switch (c.float8 >> 1) {
    case 0: return launch<Kind, Tile32>(p, c, workspace, stream);
    case 1: return launch<Kind, Tile64>(p, c, workspace, stream);
    case 2: return launch<Kind, Tile64b>(p, c, workspace, stream);
    case 3: return launch<Kind, Tile128>(p, c, workspace, stream);
    case 4: return launch<Kind, Tile128b>(p, c, workspace, stream);
    case 5: return launch<Kind, Tile256>(p, c, workspace, stream);
    default: return launch<Kind, Tile256b>(p, c, workspace, stream);
  }
#else
  if (c.block_n == Tile32::kBlockN && c.block_m == Tile32::kBlockM) return launch<Kind, Tile32>(p, c, workspace, stream);
  if (c.block_n == Tile64::kBlockN && c.block_m == Tile64::kBlockM) return launch<Kind, Tile64>(p, c, workspace, stream);
  if (c.block_n == Tile256::kBlockN && c.block_m == Tile256::kBlockM) return launch<Kind, Tile256>(p, c, workspace, stream);
  return cudaErrorInvalidValue;
#endif
}

template <Element x>
cudaError_t launch_weight_only(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
  switch (p.weight_type) {
    case Element::int8: return launch_tile<Kind<x, Element::int8>>(p, c, workspace, stream);
    case Element::e4m3: return launch_tile<Kind<x, Element::e4m3>>(p, c, workspace, stream);
    default: return launch_tile<Kind<x, Element::e5m2>>(p, c, workspace, stream);
  }
}

template <Element w>
cudaError_t launch_float8(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
  return c.float8 & 1 ? launch_tile<Kind<w, w, true>>(p, c, workspace, stream) : launch_tile<Kind<w, w>>(p, c, workspace, stream);
}

}  // namespace
}  // namespace rowwise_mma

bool rowwise_mma_takes(const RowwiseLinear& p) {
  using namespace rowwise_mma;
  const bool int8 = p.type == Element::int8, wide = p.type == Element::bf16 || p.type == Element::fp16;
  return is_8bit(p.weight_type) && (p.type == p.weight_type || wide) && (p.output != Element::int32 || int8) &&
         p.output != Element::int8 && !is_float8(p.output) && p.K % 16 == 0 && p.K <= (int8 ? kMostInt8 : kMostK) &&
         tiles(p, {128, 32, 1, 0}) <= std::numeric_limits<int>::max() && is_aligned(p.x) && is_aligned(p.weight);
}

RowwiseMmaConfig choose_rowwise_mma(const RowwiseLinear& p, int sms, bool float8_units) {
  using namespace rowwise_mma;
  RowwiseMmaConfig best{};
  double least = std::numeric_limits<double>::infinity();
  const int float8 = float8_units && is_float8(p.type) && p.output != Element::fp32;
  for (const Cost& cost : kCosts) {
    const int64_t unsplit = tiles(p, {cost.block_n, cost.block_m, 1, 0});
    const int64_t most = unsplit <= 2 * sms ? std::clamp<int64_t>(p.K / kMinK, 1, kMaxSplits) : 1;
    for (int splits = 1; splits <= most; ++splits) {
      const RowwiseMmaConfig c{cost.block_n, cost.block_m, splits, float8};
      const int64_t blocks = unsplit * splits;
      double us = cost.us * (ceil_div(p.K, 64 * splits) + 0.5) * std::max<double>(ceil_div(blocks, sms), cost.filled);
      if (splits > 1) us += kSplitCost + kCostPerMB * 2e-6 * static_cast<double>(partials_bytes(p, c));
      if (us < least) least = us, best = c;
    }
  }
  return best;
}

size_t rowwise_mma_workspace(const RowwiseLinear& p, const RowwiseMmaConfig& c) {
  using namespace rowwise_mma;
  return c.splits == 1 ? 0 : partials_bytes(p, c) + tiles(p, c) * sizeof(unsigned);
}

cudaError_t launch_rowwise_mma(const RowwiseLinear& p, const RowwiseMmaConfig& c, void* workspace, cudaStream_t stream) {
  using namespace rowwise_mma;
  switch (p.type) {
    case Element::int8: return launch_tile<Kind<Element::int8, Element::int8>>(p, c, workspace, stream);
#ifdef CUTS
    case Element::e4m3: return launch_float8<Element::e4m3>(p, c, workspace, stream);
    case Element::bf16: return launch_tile<Kind<Element::bf16, Element::int8>>(p, c, workspace, stream);
    default: return launch_tile<Kind<Element::fp16, Element::e4m3>>(p, c, workspace, stream);
#else
    case Element::e4m3: return launch_float8<Element::e4m3>(p, c, workspace, stream);
    case Element::e5m2: return launch_float8<Element::e5m2>(p, c, workspace, stream);
    case Element::bf16: return launch_weight_only<Element::bf16>(p, c, workspace, stream);
    default: return launch_weight_only<Element::fp16>(p, c, workspace, stream);
#endif
  }
}

}  // namespace aoext::cuda
