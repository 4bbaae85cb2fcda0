// Tiles of int4_mma, the choice among them and their launch.
#include <algorithm>

#include "cuda/fits.h"
#include "cuda/kernels/choice.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/int4_mma.cuh"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/launch.h"

namespace aoext::cuda {
namespace int4_mma {
namespace {

// A warp has at most 32 × 128 outputs, 128 registers of sums: the more rows share a dequantised weight, the less the integer work
// of dequantising holds up the tensor cores. For few rows BLOCK_K is larger, so that more of an output channel is in flight. At
// least two blocks fit a multiprocessor with 164 KB of shared memory, and one the 99 KB of sm_86 and sm_89.
//
// With M rows, and K split over blocks, the time in µs is about
//   step · (64-deep steps of a block + fill_steps) · max(blocks of a multiprocessor, filled)
//     + split + split_mb per MB of partial sums written and read, if K is split.
// Other GPUs than the one that was measured have other numbers, but the choice needs only their ratios.
constexpr int kMaxSplits = 16, kMinK = 256, kBlockN = 128;

// clang-format off
//                  warps N, M  warp N, M  block_k  stages     KB of shared memory
using Tile32 =  Tile<4, 1,      32, 32,    128,     3>;     // 55
using Tile64 =  Tile<4, 1,      32, 64,    64,      4>;     // 53
using Tile128 = Tile<4, 1,      32, 128,   64,      3>;     // 64
// clang-format on

constexpr int64_t kMaxK = int64_t{1} << 25;  // the strides of a thread fit 32 bits

// What tells instances apart.
using Key = std::array<int, 3>;
constexpr std::array<const char*, 3> kKeyNames = {"type", "scale", "block_m"};

template <Element kElement>
using TypeOf =
    std::conditional_t<kElement == Element::fp32, float, std::conditional_t<kElement == Element::fp16, __half, __nv_bfloat16>>;

// f(key, X{}, S{}, Tile{}) of each: the types of x and of scales.
template <class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<decltype(x)::value, Element::fp32>([&](auto s) {
      constexpr Element X = decltype(x)::value, S = decltype(s)::value;
      const auto call = [&](auto... tiles) {
        (f(Key{int(X), int(S), decltype(tiles)::kBlockM}, TypeOf<X>(), TypeOf<S>(), tiles), ...);
      };
      call(Tile32(), Tile64(), Tile128());
    });
  });
}

Key key_of(const Int4Linear& p, const MmaConfig& c) { return {int(p.type), int(p.scale_type), c.block_m}; }

int64_t tiles(const Int4Linear& p, const MmaConfig& c) { return ceil_div(p.N, c.block_n) * ceil_div(p.M, c.block_m); }

size_t partials_bytes(const Int4Linear& p, const MmaConfig& c) {
  return static_cast<size_t>(tiles(p, c)) * c.splits * c.block_n * c.block_m * sizeof(float);
}

template <class X, class S, class T>
cudaError_t launch(const Int4Linear& p, const MmaConfig& c, void* workspace, cudaStream_t stream) {
  constexpr int kBytes = T::kStages * T::template kStageBytes<S>;
  Params a{};
  a.p = p;
  a.tiles_n = ceil_div(p.N, T::kBlockN);
  a.tiles_m = ceil_div(p.M, T::kBlockM);
  a.steps = static_cast<int>(ceil_div(p.K, int64_t{T::kBlockK} * c.splits));
  const auto units = static_cast<uint64_t>(p.group_size / 32);
  while (uint64_t{1} << a.shift < units) ++a.shift;
  a.magic = static_cast<uint32_t>(((uint64_t{1} << (31 + a.shift)) + units - 1) / units);
  a.stride_weight = static_cast<uint32_t>(T::kThreads / (T::kBlockK / 32) * (p.K / 2));
  a.stride_x = static_cast<uint32_t>(T::kThreads / (T::kBlockK / 8) * p.K * 2);
  a.bias = kBias<typename Scales<X, S, T::kChannels>::Q>;
  a.one_group = p.group_size % T::kBlockK == 0;
  a.vector_scales = p.N % (16 / sizeof(S)) == 0 && is_aligned(p.scale) && is_aligned(p.zero_point);
  a.vector_y = p.N % 8 == 0 && is_aligned(p.y);
  const dim3 grid(static_cast<unsigned>(a.tiles_n * a.tiles_m),
                  static_cast<unsigned>(ceil_div(p.K, int64_t{a.steps} * T::kBlockK)));
  if (grid.y > 1) {
    a.partials = static_cast<float*>(workspace);
    a.counters = reinterpret_cast<unsigned*>(static_cast<char*>(workspace) + partials_bytes(p, c));
    const cudaError_t cleared = cudaMemsetAsync(a.counters, 0, grid.x * sizeof(unsigned), stream);
    if (cleared != cudaSuccess) return cleared;
  }
  return launch(int4_mma_kernel<X, S, T>, Grid{grid, T::kThreads, kBytes, stream, 1, Overlap::never}, a);
}

}  // namespace
}  // namespace int4_mma

bool KernelOf<MmaConfig>::takes(const Int4Linear& p) {
  return (p.type == Element::bf16 || p.type == Element::fp16) && (p.scale_type == p.type || p.scale_type == Element::fp32) &&
         p.K % 32 == 0 && p.group_size % 32 == 0 && p.K <= int4_mma::kMaxK && is_aligned(p.x) && is_aligned(p.weight);
}

Choice<MmaConfig> KernelOf<MmaConfig>::choose(const Int4Linear& p, const Device& device) {
  using namespace int4_mma;
  const Int4MmaFit& fit = fits_of(device).int4_mma;
  const int sms = device.multiprocessors;
  Choice<MmaConfig> best;
  for (const MmaFit::Tile& cost : fit.tiles) {
    const int64_t unsplit = tiles(p, {cost.block_n, cost.block_m, 1});
    const int64_t most = unsplit <= 2 * sms ? std::clamp<int64_t>(p.K / kMinK, 1, kMaxSplits) : 1;
    for (int splits = 1; splits <= most; ++splits) {
      const MmaConfig c{cost.block_n, cost.block_m, splits};
      const int64_t blocks = unsplit * splits;
      double us =
          cost.step * (ceil_div(p.K, 64 * splits) + fit.fill_steps) * std::max<double>(ceil_div(blocks, sms), cost.filled);
      if (splits > 1) us += fit.split + fit.split_mb * 2e-6 * static_cast<double>(partials_bytes(p, c));
      best.consider(c, us);
    }
  }
  return best;
}

bool KernelOf<MmaConfig>::fits(const Int4Linear& p, const MmaConfig& c) {
  using namespace int4_mma;
  bool found = false;
  for_each_instance([&, key = key_of(p, c)](const Key& k, auto...) { found = found || k == key; });
  return found && c.block_n == kBlockN && c.splits >= 1 && c.splits <= kMaxSplits;
}

size_t KernelOf<MmaConfig>::workspace(const Int4Linear& p, const MmaConfig& c) {
  return c.splits == 1 ? 0 : int4_mma::partials_bytes(p, c) + int4_mma::tiles(p, c) * sizeof(unsigned);
}

cudaError_t KernelOf<MmaConfig>::launch(const Int4Linear& p, const MmaConfig& c, void* workspace, cudaStream_t stream) {
  if (!fits(p, c)) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  int4_mma::for_each_instance([&, key = int4_mma::key_of(p, c)](const int4_mma::Key& k, auto x, auto s, auto tile) {
    if (k == key) error = int4_mma::launch<decltype(x), decltype(s), decltype(tile)>(p, c, workspace, stream);
  });
  return error;
}

std::string KernelOf<MmaConfig>::instances() {
  return instances_text(kName, int4_mma::kKeyNames, [](auto&& f) { int4_mma::for_each_instance(f); });
}

std::string KernelOf<MmaConfig>::instance(const Int4Linear& p, const MmaConfig& c) {
  return instance_text(kName, int4_mma::kKeyNames, int4_mma::key_of(p, c));
}

}  // namespace aoext::cuda
