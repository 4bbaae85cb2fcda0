// What the launchers of kernels for few rows of x share (few_rows.cuh): how a configuration cuts N and K, how the x of a k-split
// goes through shared memory, how many clusters run at once, how long the split-K reduction takes, and the launch. A Config has
// blocks, cluster, k_splits, tiles, shared_memory and overlaps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/fits.h"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

constexpr bool is_cluster(int blocks) { return blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8; }
constexpr int log2_of_cluster(int cluster) { return cluster == 8 ? 3 : cluster / 2; }  // of 1, 2, 4 or 8 blocks

// Clusters that run at once where `resident` blocks fit on a multiprocessor. Those of more than two leave some idle in a GPC.
constexpr int clusters_at_once(int sms, int resident, int cluster) {
  return cluster > 2 ? sms * resident * 11 / 12 / cluster : sms * resident / cluster;
}

// Blocks that a multiprocessor has, of at most so many, where so many clusters run at once.
constexpr int blocks_at_once(int sms, int most, int cluster, int clusters) {
  int resident = 1;
  while (resident < most && clusters_at_once(sms, resident, cluster) < clusters) ++resident;
  return resident;
}

// Microseconds of the split-K reductions, one at the end of every turn; `warps` of a multiprocessor have so many tiles each.
template <class Config>
double reduction_time(const ReductionFit& fit, const Config& c, int turns, double warps, int warp_tiles, int64_t M) {
  const double sums = warps * warp_tiles * static_cast<double>(M);
  const double rounds = static_cast<double>(ceil_div(warp_tiles * M, 2 * c.k_splits));
  const double turn = fit.turn + fit.sum * sums + fit.round * rounds + (c.cluster > 1 ? fit.cluster + fit.cluster_sum * sums : 0);
  return turns * turn + (c.cluster > 2 ? fit.large_cluster * (log2_of_cluster(c.cluster) - 1) : 0);
}

// What a launch is made of.
template <class Params>
struct FewRowsLaunch {
  Params params;
  int turns;      // of a block, each at another group of tiles
  size_t shared;  // bytes
};

// A problem as the skeleton sees it, and the tiles and k-tiles of a warp's stage. A launch may be of several, of M rows at most.
struct FewRows {
  int64_t M, fewest_rows, N, k_tiles;
  int warp_tiles, stage_k_tiles;
  int most_threads = kFewRowsThreads;
};

// Cuts N into groups of tiles and K over a cluster. The bytes of partial sums; 0 if the configuration does not fit.
template <class Params, class Config>
size_t lay_out_tiles(FewRowsLaunch<Params>& out, const Config& c, const FewRows& p) {
  using Reduction = SplitKReduction<float>;
  Params& w = out.params;
  const int warps = c.tiles * c.k_splits, tiles = c.tiles * p.warp_tiles, M = static_cast<int>(p.M);
  // A half warp either sends or collects, and every block collects something, without which it would run ahead of the others.
  if (!is_cluster(c.cluster) || c.blocks < 1 || c.tiles < 1 || c.k_splits < 1 || warps * 32 > p.most_threads ||
      warps * 2 % c.cluster || tiles * p.fewest_rows < c.cluster)
    return 0;
  w.M = M, w.m_magic = ((1u << 20) + M - 1) / M;
  w.tile_groups = static_cast<int>(ceil_div(p.N, Reduction::kTileN * tiles));
  w.k_tiles = static_cast<int>(p.k_tiles);
  w.split_k_tiles = static_cast<int>(ceil_div(ceil_div(p.k_tiles, c.cluster), p.stage_k_tiles) * p.stage_k_tiles);
  w.cluster_log2 = log2_of_cluster(c.cluster);
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(Reduction::sums(tiles, c.k_splits, M, 1)) : 0;
  return Reduction::sums(tiles, c.k_splits, M, c.cluster) * buffers * sizeof(float);
}

// Cuts a block's k-split into chunks whose x fits into shared memory beside `fixed` bytes; a chunk is a multiple of a stage of
// all k-splits, of k-tiles of `per_k_tile` bytes. False where not even one fits.
template <class Params, class Config>
bool lay_out_chunks(FewRowsLaunch<Params>& out, const Config& c, int stage_k_tiles, size_t fixed, size_t per_k_tile) {
  Params& w = out.params;
  const int step = c.k_splits * stage_k_tiles;
  const auto limit = static_cast<size_t>(c.shared_memory);
  if (fixed + per_k_tile * step > limit) return false;
  const int room = static_cast<int>((limit - fixed) / per_k_tile);
  if (w.split_k_tiles <= room) {
    w.chunks = 1, w.chunk_k_tiles = w.split_k_tiles;
  } else {
    w.chunks = static_cast<int>(ceil_div(w.split_k_tiles, room / step * step));
    w.chunk_k_tiles = static_cast<int>(ceil_div(ceil_div(w.split_k_tiles, w.chunks), step) * step);
    w.chunks = static_cast<int>(ceil_div(w.split_k_tiles, w.chunk_k_tiles));
  }
  w.warp_stages = static_cast<int>(ceil_div(w.chunk_k_tiles, step));
  out.shared = fixed + per_k_tile * w.chunk_k_tiles;
  return true;
}

// `row_tiles`: products that are launched at once, along z.
template <class Params, class Config>
cudaError_t launch_few_rows(void (*kernel)(Params), const Params& params, const Config& c, size_t shared, cudaStream_t stream,
                            unsigned row_tiles = 1) {
  const dim3 blocks(c.cluster, std::min(c.blocks, params.tile_groups), row_tiles), threads(32, c.k_splits, c.tiles);
  return launch(
      kernel,
      Grid{blocks, threads, shared, stream, static_cast<unsigned>(c.cluster), c.overlaps ? Overlap::after_ours : Overlap::never},
      params);
}

}  // namespace aoext::cuda
