// Instances of int4_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_decode.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/few_rows.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/int4_decode.cuh"

namespace aoext::cuda {
namespace {

using int4_decode::kTileK;
using int4_decode::kTileN;
using int4_decode::Params;
using Kernel = void (*)(Params);

// Threads that a block may have. 512 leave a thread 128 registers, 640 leave it 96.
constexpr int threads_of(int block_m, int warp_tiles, int stage_k_tiles) {
  return block_m == 8 && warp_tiles == 1 && stage_k_tiles == 2 ? 640 : kFewRowsThreads;
}

// The k that share a scale, as far as there are kernels for them.
int sub_of(const Int4Linear& p) { return p.group_size % kTileK == 0 ? kTileK : 64; }

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"type", "scale", "sub", "block_m", "warp_tiles", "stage_k_tiles"};

// Groups of whole k-tiles with scales of the input's type have kernels of more shapes (warp_tiles, stage_k_tiles) than (2, 1).
constexpr bool has_kernel(bool own_scales, int sub, int block_m, int warp_tiles, int stage_k_tiles) {
  if (!own_scales && sub < kTileK) return false;
  if (warp_tiles == 2 && stage_k_tiles == 1) return true;
  return own_scales && sub == kTileK && stage_k_tiles == 2 && (warp_tiles == 1 || block_m < 16);
}

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<decltype(x)::value, Element::fp32>([&](auto s) {
      each<64, kTileK>([&](auto sub) {
        each<8, 16>([&](auto block_m) {
          each<1, 2>([&](auto warp_tiles) {
            each<1, 2>([&](auto stage_k_tiles) {
              constexpr Element X = decltype(x)::value, S = decltype(s)::value;
              constexpr int kSub = decltype(sub)::value, kRows = decltype(block_m)::value;
              constexpr int kTiles = decltype(warp_tiles)::value, kStageKTiles = decltype(stage_k_tiles)::value;
              if constexpr (has_kernel(X == S, kSub, kRows, kTiles, kStageKTiles))
                f(Key{int(X), int(S), kSub, kRows, kTiles, kStageKTiles},
                  Kernel(int4_decode::int4_decode_kernel<X, S, kSub, kRows, kTiles, kStageKTiles,
                                                         threads_of(kRows, kTiles, kStageKTiles)>));
            });
          });
        });
      });
    });
  });
}

Key key_of(const Int4Linear& p, const DecodeConfig& c) {
  return {int(p.type), int(p.scale_type), sub_of(p), c.block_m, c.warp_tiles, c.stage_k_tiles};
}

Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  Kernel found = nullptr;
  if (p.M > c.block_m) return found;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

using Launch = FewRowsLaunch<Params>;

// The parameters of a configuration, and the memory it takes; false if it does not fit.
bool lay_out(const Int4Linear& p, const DecodeConfig& c, Launch& out) {
  const int sub = sub_of(p), most_threads = threads_of(c.block_m, c.warp_tiles, c.stage_k_tiles);
  const size_t sums = lay_out_tiles(out, c, {p.M, p.M, p.N, ceil_div(p.K, kTileK), c.warp_tiles, c.stage_k_tiles, most_threads});
  if (sums == 0) return false;
  out.params.set(p, sub);
  return lay_out_chunks(out, c, c.stage_k_tiles, 16 + sums, size_t(c.block_m) * (kTileK * 2 + kTileK / sub * 8));
}

// Microseconds of a configuration, by a model: reading the weight; the stages of a multiprocessor's warps, limited by arithmetic
// and latency; x staged once, or in each turn where it does not fit at once; the split-K reduction.
double model_time(const Int4Linear& p, const DecodeConfig& c, const Launch& l, const Device& device, int resident) {
  const Params& w = l.params;
  const DecodeFit& fit = fits_of(device).int4_decode;
  const DecodeFit::Costs& cost = c.block_m > 8 ? fit.more_rows : fit.eight_rows;
  const double kb = c.warp_tiles * c.stage_k_tiles, m = w.M, warps = resident * c.tiles * c.k_splits;
  // The quarter of a multiprocessor with the most of a block's warps has so many times four.
  const double busiest = 4.0 * resident * static_cast<double>(ceil_div(c.tiles * c.k_splits, 4));
  const double round = std::hypot(busiest * kb * (cost.work + cost.work_m * m / c.warp_tiles), cost.latency * kb);
  const double rounds =
      static_cast<double>(l.turns) * w.chunks * w.warp_stages * round * (sub_of(p) < kTileK ? fit.small_groups : 1);
  const double read = static_cast<double>(p.N) * p.K * (0.5 + 4.0 / std::min<int64_t>(p.group_size, kTileK)) / device.bandwidth;
  const double staged = m * resident * w.split_k_tiles * (w.chunks > 1 ? l.turns : 1), again = (w.chunks - 1.0) * l.turns;
  return cost.rest + cost.read * read + rounds + cost.staged * staged + cost.again * again +
         reduction_time(fits_of(device).reduction, c, l.turns, warps, c.warp_tiles, p.M);
}

}  // namespace

bool KernelOf<DecodeConfig>::takes(const Int4Linear& p) {
  const bool types = (p.type == Element::bf16 || p.type == Element::fp16) &&
                     (p.scale_type == p.type || (p.scale_type == Element::fp32 && p.group_size % kTileK == 0));
  return types && few_rows_counts(p) && p.M <= 16 && p.N % 2 == 0 && p.group_size % 64 == 0 && is_aligned(p.x) &&
         is_aligned(p.weight) && is_aligned(p.scale, 4) && is_aligned(p.zero_point, 4);
}

Choice<DecodeConfig> KernelOf<DecodeConfig>::choose(const Int4Linear& p, const Device& device) {
  constexpr int kMostBlocks = 65535;
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const Features features = device.features;
  const int block_m = p.M <= 8 ? 8 : 16;
  const bool small_groups = sub_of(p) < kTileK;
  const DecodeFit& fit = fits_of(device).int4_decode;
  const int most_cluster = p.M < 4 || small_groups ? fit.cluster_few_rows
                           : block_m == 8          ? fit.cluster_eight_rows
                                                   : fit.cluster_more_rows;
  const int fewest_k_splits = small_groups ? 2 : 1, most_blocks = small_groups ? 1 : 16;  // of a multiprocessor
  Choice<DecodeConfig> best;
  constexpr struct {
    int warp_tiles, stage_k_tiles;
  } shapes[] = {{2, 1}, {1, 2}, {2, 2}};
  for (const auto& shape : shapes) {
    DecodeConfig c{block_m, shape.warp_tiles, shape.stage_k_tiles, 1, 1, 1, 1, shared_memory, features.overlap};
    if (!kernel_of(p, c)) continue;
    const int threads = threads_of(block_m, c.warp_tiles, c.stage_k_tiles), sm_warps = threads == 640 ? 21 : 16;
    for (c.cluster = 1; c.cluster <= (features.clusters ? most_cluster : 1); c.cluster *= 2)
      for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
        for (c.k_splits = fewest_k_splits; c.tiles * c.k_splits <= threads / 32; ++c.k_splits) {
          const int warps = c.tiles * c.k_splits;
          if (warps < 8) continue;
          c.blocks = kMostBlocks;
          Launch l;
          if (!lay_out(p, c, l)) continue;
          // What is resident at once.
          const int resident = std::clamp(
              std::min<int>(sm_warps / warps, (static_cast<size_t>(shared_memory) + 1024) / (l.shared + 1024)), 1, most_blocks);
          const int slots = clusters_at_once(sms, resident, c.cluster);
          if (slots < 1) continue;
          const int turns = static_cast<int>(ceil_div(l.params.tile_groups, slots));
          c.blocks = static_cast<int>(ceil_div(l.params.tile_groups, turns));
          if (turns > 1 && !lay_out(p, c, l)) continue;
          best.consider(c, model_time(p, c, l, device, blocks_at_once(sms, resident, c.cluster, c.blocks)));
        }
  }
  return best;
}

bool KernelOf<DecodeConfig>::fits(const Int4Linear& p, const DecodeConfig& c) {
  Launch l;
  return kernel_of(p, c) && lay_out(p, c, l);
}

cudaError_t KernelOf<DecodeConfig>::launch(const Int4Linear& p, const DecodeConfig& c, void* /*workspace*/, cudaStream_t stream) {
  const Kernel kernel = kernel_of(p, c);
  Launch l;
  if (!takes(p) || !kernel || !lay_out(p, c, l)) return cudaErrorInvalidValue;
  return launch_few_rows(kernel, l.params, c, l.shared, stream);
}

std::string KernelOf<DecodeConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<DecodeConfig>::instance(const Int4Linear& p, const DecodeConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
