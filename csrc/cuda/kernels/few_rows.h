// What the launchers of kernels for few rows of x share (few_rows.cuh): how the x of a k-split goes through shared memory, how
// many clusters run at once, how long the split-K reduction takes, and the launch. Params have split_k_tiles, chunks,
// chunk_k_tiles, warp_stages and tile_groups; a Config has blocks, cluster, slices, tiles and overlaps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/fits.h"
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
  const double rounds = static_cast<double>(ceil_div(warp_tiles * M, 2 * c.slices));
  const double turn = fit.turn + fit.sum * sums + fit.round * rounds + (c.cluster > 1 ? fit.cluster + fit.cluster_sum * sums : 0);
  return turns * turn + (c.cluster > 2 ? fit.large_cluster * (log2_of_cluster(c.cluster) - 1) : 0);
}

// Cuts a block's k-split into chunks whose x fits into shared memory beside `fixed` bytes; a chunk is a multiple of `step`
// k-tiles of `per_k_tile` bytes. The bytes of all, 0 where not even `step` k-tiles fit.
template <class Params>
size_t lay_out_chunks(Params& w, size_t fixed, size_t per_k_tile, int step, size_t limit) {
  if (fixed + per_k_tile * step > limit) return 0;
  const int room = static_cast<int>((limit - fixed) / per_k_tile);
  if (w.split_k_tiles <= room) {
    w.chunks = 1, w.chunk_k_tiles = w.split_k_tiles;
  } else {
    w.chunks = static_cast<int>(ceil_div(w.split_k_tiles, room / step * step));
    w.chunk_k_tiles = static_cast<int>(ceil_div(ceil_div(w.split_k_tiles, w.chunks), step) * step);
    w.chunks = static_cast<int>(ceil_div(w.split_k_tiles, w.chunk_k_tiles));
  }
  w.warp_stages = static_cast<int>(ceil_div(w.chunk_k_tiles, step));
  return fixed + per_k_tile * w.chunk_k_tiles;
}

template <class Params, class Config>
cudaError_t launch_few_rows(void (*kernel)(Params), const Params& params, const Config& c, size_t shared, cudaStream_t stream) {
  const dim3 blocks(c.cluster, std::min(c.blocks, params.tile_groups)), threads(32, c.slices, c.tiles);
  return launch(
      kernel,
      Grid{blocks, threads, shared, stream, static_cast<unsigned>(c.cluster), c.overlaps ? Overlap::after_ours : Overlap::never},
      params);
}

}  // namespace aoext::cuda
