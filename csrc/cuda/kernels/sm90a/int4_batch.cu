// Instances of int4_batch.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_batch.h"

#include <algorithm>
#include <iterator>

#include "cuda/fits.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/int4_batch.cuh"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda {
namespace {

using int4_batch::Codes;
using int4_batch::kBlockVectors;
using int4_batch::kCodesThreads;
using int4_batch::kTileK;
using int4_batch::log2_of;
using int4_batch::Params;

constexpr int kReserved = 4096;  // at least what a block of the first kernel takes of shared memory unasked

// Applying scales costs the more the smaller the groups, so that other kernels win with fewer rows.
constexpr int most_rows(int64_t group_size) { return group_size < kTileK ? 32 : 64; }

struct BatchKernels {
  void (*stage)(const uint16_t*, char*, int, int64_t);
  void (*stage_codes)(Codes, bool);
  void (*multiply)(CUtensorMap, CUtensorMap, CUtensorMap, Params);
  int sub, scale_bytes, pair_bytes;
  int (*stage_bytes)(int);
  int (*warpgroups_bytes)(int);
  int (*blocks_bytes)(int, int);
};

template <Element X, Element S, int Sub, int kBlockM>
BatchKernels batch_kernels() {
  using L = int4_batch::Stage<S, Sub, kBlockM>;
  using Reduction = int4_batch::SplitKReduction<kBlockM>;
  return {int4_batch::stage_kernel<X, Sub, kBlockM>,
          int4_batch::stage_codes_kernel<X, Sub, kBlockM>,
          int4_batch::int4_batch_kernel<X, S, Sub, kBlockM>,
          Sub,
          L::kScaleBytes,
          int4_batch::PairX<Sub, kBlockM>::kBytes,
          L::bytes,
          Reduction::warpgroups,
          Reduction::blocks};
}

// What tells instances apart.
using Key = std::array<int, 4>;
constexpr std::array<const char*, 4> kKeyNames = {"type", "scale", "sub", "block_m"};

// f(key, kernels) of each.
template <class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<decltype(x)::value, Element::fp32>([&](auto s) {
      each<32, 64, kTileK>([&](auto sub) {
        each<16, 32, 64>([&](auto block_m) {
          constexpr Element X = decltype(x)::value, S = decltype(s)::value;
          constexpr int kSub = decltype(sub)::value, kBlockM = decltype(block_m)::value;
          if constexpr (kBlockM <= most_rows(kSub)) f(Key{int(X), int(S), kSub, kBlockM}, batch_kernels<X, S, kSub, kBlockM>());
        });
      });
    });
  });
}

Key key_of(const Int4Linear& p, const BatchConfig& c) {
  return {int(p.type), int(p.scale_type), static_cast<int>(std::min<int64_t>(p.group_size, kTileK)), c.block_m};
}

// Empty where there is none.
BatchKernels kernels_of(const Int4Linear& p, const BatchConfig& c) {
  BatchKernels found{};
  for_each_instance([&, key = key_of(p, c)](const Key& k, const BatchKernels& i) { found = k == key ? i : found; });
  return found;
}

struct Launch {
  Params params;
  int shared;  // bytes
};

// The parameters of a configuration, and the memory it takes; false if it does not fit.
bool lay_out(const Int4Linear& p, const BatchConfig& c, const BatchKernels& kernels, Launch& out) {
  Params& w = out.params;
  w.N = p.N, w.bias = p.bias, w.row_scale = p.row_scale, w.y = p.y, w.M = static_cast<int>(p.M);
  w.scale_k_tiles = static_cast<int>(std::max<int64_t>(p.group_size / kTileK, 1));
  w.k_splits_log2 = log2_of(c.k_splits), w.cluster_log2 = log2_of(c.cluster);
  w.k_tiles = static_cast<int>(p.K / kTileK);
  w.bias_type = static_cast<int>(p.bias_type);
  w.schedule = schedule_tiles(ceil_div(p.N, kBatchRows / c.k_splits), ceil_div(w.k_tiles, int4_batch::kPairKTiles), c.blocks,
                              c.cluster, 0);
  if (!schedule_fits(w.schedule, c.blocks) || c.cluster > 2) return false;  // every block owns something
  const int stage = kernels.stage_bytes(c.k_splits);
  const int fixed = 1024 + int4_batch::SplitKReduction<16>::kBarriers + kernels.warpgroups_bytes(c.k_splits) +
                    kernels.blocks_bytes(c.k_splits, c.cluster);
  const int turns = int4_batch::stage_turns(c.k_splits), most = (c.shared_memory - int(sizeof(BlockWork)) - fixed) / stage;
  w.depth = std::min(int4_batch::kMostDepth, most) / turns * turns;  // wgmma::Ring says why
  out.shared = fixed + w.depth * stage;
  return w.depth >= 2;
}

// The bytes of x as the first kernel leaves it.
size_t x_bytes(const Int4Linear& p, const BatchKernels& kernels) {
  return static_cast<size_t>(ceil_div(p.K / kTileK, int4_batch::kPairKTiles)) * kernels.pair_bytes;
}

}  // namespace

bool KernelOf<BatchConfig>::takes(const Int4Linear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool groups = p.group_size == 32 || p.group_size == 64 || p.group_size % kTileK == 0;
  return groups && p.M <= most_rows(p.group_size) && p.type != Element::fp32 &&
         (p.scale_type == p.type || p.scale_type == Element::fp32) && p.K % kTileK == 0 && p.N % 8 == 0 && p.N < kMost &&
         p.K < kMost;
}

// By a model of the time: turns of so many stages.
Choice<BatchConfig> KernelOf<BatchConfig>::choose(const Int4Linear& p, const Device& device) {
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const BatchFit& fit = fits_of(device).int4_batch;
  const BatchFit::Tile& cost =
      *std::find_if(std::begin(fit.tiles), std::end(fit.tiles), [&](const BatchFit::Tile& tile) { return p.M <= tile.block_m; });
  const BatchKernels kernels = kernels_of(p, BatchConfig{cost.block_m});
  Choice<BatchConfig> best;
  for (int k_splits = 1; k_splits <= 4; k_splits *= 2) {
    const int64_t tiles = ceil_div(p.N, kBatchRows / k_splits), stages = ceil_div(p.K / kTileK, int4_batch::kPairKTiles);
    const double stage = cost.step[log2_of(k_splits)], turn = fit.turn + fit.turn_row * cost.block_m;
    for (const int cluster : {1, 2}) {
      const auto config = [&](int64_t blocks) {
        return BatchConfig{cost.block_m, k_splits, cluster, static_cast<int>(blocks), shared_memory};
      };
      // All that run at once are faster by 2%, where they come out even.
      BatchConfig c = config(std::min<int64_t>(tiles * cluster, sms / cluster * cluster));
      Launch l;
      if (cluster == 1 || !lay_out(p, c, kernels, l)) c = config(even_blocks(tiles, cluster, sms));
      if (!lay_out(p, c, kernels, l)) continue;
      double time = fit.launches + ceil_div(l.params.schedule.whole_tiles, c.blocks) * (stages * stage + turn);
      if (shared_tiles(l.params.schedule) > 0)
        time += ceil_div(stages, cluster) * stage + turn + fit.cluster + fit.cluster_row * cost.block_m;
      best.consider(c, time);
    }
  }
  return best;
}

bool KernelOf<BatchConfig>::fits(const Int4Linear& p, const BatchConfig& c) {
  const bool k_splits = c.k_splits == 1 || c.k_splits == 2 || c.k_splits == 4;
  const BatchKernels kernels = kernels_of(p, c);
  Launch l;
  return kernels.multiply && k_splits && p.M <= c.block_m && c.cluster >= 1 && c.blocks >= 1 && lay_out(p, c, kernels, l);
}

size_t KernelOf<BatchConfig>::workspace(const Int4Linear& p, const BatchConfig& c) {
  return x_bytes(p, kernels_of(p, c)) + (p.quantizes ? c.block_m * sizeof(float) : 0);
}

cudaError_t KernelOf<BatchConfig>::launch(const Int4Linear& p, const BatchConfig& c, void* workspace, cudaStream_t stream) {
  if (!takes(p) || !fits(p, c)) return cudaErrorInvalidValue;
  const BatchKernels kernels = kernels_of(p, c);
  Launch l;
  lay_out(p, c, kernels, l);
  auto* const x = static_cast<char*>(workspace);
  auto* const row_scale = reinterpret_cast<float*>(x + x_bytes(p, kernels));
  l.params.x = x;
  if (p.quantizes) l.params.row_scale = row_scale;
  const int64_t rows = kBatchRows / c.k_splits, groups = p.K / p.group_size;
  const int64_t scale_rows = kTileK / kernels.sub * (l.params.scale_k_tiles == 1 ? int4_batch::kPairKTiles : 1);
  const TensorMap w(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {p.K / 2, p.N}, {p.K / 2},
                    {kTileK, rows});
  const auto scale_map = [&](const void* data) {
    return TensorMap(map_type(p.scale_type), data, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, groups}, {p.N * kernels.scale_bytes},
                     {rows, scale_rows});
  };
  const TensorMap scale = scale_map(p.scale), zero = scale_map(p.zero_point);
  if (!w.valid || !scale.valid || !zero.valid) return cudaErrorNotSupported;

  const auto stage = [&](dim3 blocks, int threads) {
    // Shared memory that the first kernel has no use for spreads its blocks: all of them on the few multiprocessors that the last
    // kernel leaves idle took 2 µs longer.
    const int room = std::max<int>(c.shared_memory / ceil_div(int64_t{blocks.x} * blocks.y, c.blocks) - kReserved, 0);
    return Grid{blocks, static_cast<unsigned>(threads), static_cast<size_t>(room), stream, 1, Overlap::after_ours};
  };
  const cudaError_t error =
      p.code == p.type
          ? cuda::launch(kernels.stage, stage(l.params.k_tiles, c.block_m * 4), static_cast<const uint16_t*>(p.x), x, l.params.M,
                         p.K)
          : cuda::launch(kernels.stage_codes, stage(dim3(ceil_div(p.K / 8, kBlockVectors), c.block_m), kCodesThreads),
                         Codes{p.x, row_scale, x, p.K, l.params.M, p.quantizes}, p.code == Element::int8);
  if (error != cudaSuccess) return error;
  const Grid multiply{static_cast<unsigned>(c.blocks),  int4_batch::kThreads, static_cast<size_t>(l.shared), stream,
                      static_cast<unsigned>(c.cluster), Overlap::always};
  return cuda::launch(kernels.multiply, multiply, w.map, scale.map, zero.map, l.params);
}

std::string KernelOf<BatchConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<BatchConfig>::instance(const Int4Linear& p, const BatchConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
