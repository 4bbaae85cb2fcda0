// How launches of rowwise_decode.cuh are cut, and the choice among the cuts, for weights of any format.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/few_rows.h"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/rowwise_decode.h"

namespace aoext::cuda::rowwise_decode {

// What a loader says of a problem: k of a k-tile, its bytes in the ring, those of a table, bytes of an output channel.
inline int tile_k(const RowwiseLinear&) { return RowsOf<Element::int8>::kTileK; }
inline int k_tile_bytes(const RowwiseLinear&) { return kWeightBytes; }
inline int table_bytes(const RowwiseLinear&) { return 0; }
inline int64_t weight_row_bytes(const RowwiseLinear& p) { return p.K; }

// Rows of x that blocks have at most: all, or of experts those of a tile.
template <class Linear>
int64_t rows_of(const Linear& p) {
  return p.experts == 0 ? p.M : std::min<int64_t>(p.M, kExpertRows);
}

// Tiles of rows at most, which are the grid's along z.
template <class Linear>
int64_t row_tiles(const Linear& p) {
  return p.experts == 0 ? 1 : most_row_tiles(p.M, p.experts, kExpertRows);
}

// Whether blocks have as many rows as there are kernels for, and a grid holds them.
template <class Linear>
bool takes_rows(const Linear& p) {
  return rows_of(p) <= 16 && row_tiles(p) <= 65535 && p.experts < int64_t{1} << 31;
}

// One row of x in a k-tile.
template <class Linear>
size_t k_tile_x_bytes(const Linear& p) {
  return tile_k(p) * (is_8bit(multiplied_type(p)) ? 1 : 2);
}

template <class Linear>
using Launch = FewRowsLaunch<Params<Linear>>;

// The parameters of a configuration, and the memory it takes; false if it does not fit.
template <class Linear>
bool lay_out(const Linear& p, const RowwiseDecodeConfig& c, Launch<Linear>& out) {
  const int64_t M = rows_of(p), fewest_rows = p.experts == 0 ? M : 1;
  const int threads = p.experts == 0 ? kFewRowsThreads : kExpertThreads;
  const size_t sums = lay_out_tiles(out, c, {M, fewest_rows, p.N, ceil_div(p.K, tile_k(p)), 1, 1, threads});
  if (sums == 0) return false;
  out.params.linear = p, out.params.ahead = c.ahead / 16 * 16;
  const int warps = c.tiles * c.k_splits;
  const size_t fixed = table_bytes(p) + size_t(warps) * c.depth * k_tile_bytes(p) + 16 + (M > 8 ? 16 : 8) * sizeof(float) +
                       2 * c.tiles * kTileN * sizeof(Channel) + sums;
  if (!lay_out_chunks(out, c, 1, fixed, M * k_tile_x_bytes(p))) return false;
  return !p.quantizes || (out.params.chunks == 1 && warps >= M);  // once, and a row by whole warps
}

// Microseconds of a configuration, by a model: reading the weight, or the rounds of a multiprocessor's warps, limited by
// arithmetic and by latency, and what comes before and after them: x in flight, the first ring filling and the last one emptying,
// the split-K reduction. Several blocks on a multiprocessor hide that from each other, and from the kernels before and after.
template <class Linear>
double model_time(const Linear& p, const RowwiseDecodeConfig& c, const Launch<Linear>& l, const Device& device, int resident) {
  const Params<Linear>& w = l.params;
  const RowwiseDecodeFit& fit = fits_of(device).rowwise_decode;
  const int64_t M = rows_of(p);
  const bool wide = M > 8;
  const RowwiseDecodeFit::Costs& cost = multiplied_type(p) == Element::int8 ? fit.int8 : fit.others;
  const auto fourth = [](double a, double b) { return std::pow(std::pow(a, 4) + std::pow(b, 4), 0.25); };
  const double warps = resident * c.tiles * c.k_splits, filled = std::min(c.depth, w.warp_stages);
  const double read =
      static_cast<double>(p.N) * weight_row_bytes(p) / device.bandwidth * (fit.read + fit.read_slice / c.k_splits);
  const double work = warps * (wide ? cost.work_wide : cost.work);
  const double latency = cost.latency / c.depth + (wide ? fit.latency_wide : 0);
  const double rounds = static_cast<double>(l.turns) * w.chunks * w.warp_stages * fourth(work, latency);
  const double x = 1e-3 * resident * w.split_k_tiles * static_cast<double>(M * k_tile_x_bytes(p));
  const double x_again = w.chunks > 1 ? fit.x_again * x * (l.turns - 1.0 / w.chunks) + fit.chunk * (w.chunks - 1) * l.turns : 0;
  const double reducing = l.turns * static_cast<double>(ceil_div(c.tiles * M, 2 * c.tiles * c.k_splits)) *
                          (fit.reduction + fit.reduction_slice * c.k_splits);
  // Less in flight than in any configuration that was measured, or more multiprocessors idle: unknown, and hardly faster.
  const double busy = static_cast<double>(p.N) * c.cluster /
                      (kTileN * c.tiles * static_cast<double>(l.turns) * device.multiprocessors * resident);
  const double few = std::max({1.0, fit.fewest_units / (warps * c.depth), fit.fewest_busy / busy});
  return few * (fit.launch + fourth(read, rounds)) + fit.x * x / w.chunks + x_again + fit.ring * warps * filled +
         cost.filled * filled + reducing + (resident == 1 ? fit.alone : 0) + (c.cluster > 1 ? fit.cluster : 0) +
         (c.cluster > 2 ? fit.large_cluster : 0);
}

// What the model says is fastest, of a tile of rows where there are several.
template <class Linear>
Choice<RowwiseDecodeConfig> choose_cut_of_tile(const Linear& p, const Device& device, int most_cluster) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const Features features = device.features;
  const bool experts = p.experts > 0;
  const int sm_warps = experts ? kExpertThreads / 32 : p.M > 8 ? 16 : 21;  // that have registers
  Choice<RowwiseDecodeConfig> best;
  RowwiseDecodeConfig c{2, 1, 1, 1, 1, shared_memory, experts ? 0 : kAhead, features.overlap};
  for (c.depth = experts ? kExpertDepth : 2; c.depth <= 4; c.depth += 2)
    for (c.cluster = 1; c.cluster <= (features.clusters ? most_cluster : 1); c.cluster *= 2)
      for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
        for (c.k_splits = 1; c.tiles * c.k_splits <= 16; ++c.k_splits)
          for (int resident = 1; resident <= 3 && resident * c.tiles * c.k_splits <= sm_warps; ++resident) {
            const int slots = clusters_at_once(sms, resident, c.cluster);
            if (slots < 1) continue;
            const int64_t groups = ceil_div(p.N, kTileN * c.tiles);
            c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
            Launch<Linear> l;
            if (!lay_out(p, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024) continue;
            const int at_once = std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms)));
            best.consider(c, model_time(p, c, l, device, at_once));
          }
  return best;
}

// Each tile of experts' rows has its share of the GPU.
template <class Linear>
Choice<RowwiseDecodeConfig> choose_cut(const Linear& p, const Device& device, int most_cluster) {
  if (p.experts == 0) return choose_cut_of_tile(p, device, most_cluster);
  return choose_of_tiles(expected_row_tiles(p.M, p.experts, kExpertRows), std::min(p.M, row_tiles(p)), device,
                         [&](const Device& share) { return choose_cut_of_tile(p, share, most_cluster); });
}

// Launches the kernel of a configuration that has been laid out.
template <class Linear>
cudaError_t launch(void (*kernel)(Params<Linear>), const Launch<Linear>& l, const RowwiseDecodeConfig& c, cudaStream_t stream) {
  return launch_few_rows(kernel, l.params, c, l.shared, stream, static_cast<unsigned>(row_tiles(l.params.linear)));
}

}  // namespace aoext::cuda::rowwise_decode
