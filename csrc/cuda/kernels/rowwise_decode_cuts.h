// How launches of rowwise_decode.cuh are cut, and the choice among the cuts, for weights of any format.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/kernels/choice.h"
#include "cuda/kernels/few_rows.h"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/rowwise_decode.h"

namespace aoext::cuda::rowwise_decode {

// What a loader says of a problem: k of a k-tile, its bytes in the ring, those of a table, bytes of an output channel.
inline int tile_k(const RowwiseLinear&) { return RowsOf<Element::int8>::kTileK; }
inline int k_tile_bytes(const RowwiseLinear&) { return kWeightBytes; }
inline int table_bytes(const RowwiseLinear&) { return 0; }
inline int64_t weight_row_bytes(const RowwiseLinear& p) { return p.K; }

// Of one row of x, in a k-tile.
template <class Linear>
size_t k_tile_x_bytes(const Linear& p) {
  return tile_k(p) * (is_8bit(multiplied_type(p)) ? 1 : 2);
}

template <class Linear>
struct Launch {
  Params<Linear> params;
  int turns;
  size_t shared;  // bytes
};

// The parameters of a configuration, and the memory it takes; false if it does not fit.
template <class Linear>
bool lay_out(const Linear& p, const RowwiseDecodeConfig& c, Launch<Linear>& out) {
  Params<Linear>& w = out.params;
  const int warps = c.tiles * c.slices, M = static_cast<int>(p.M);
  // A half warp either sends or collects, and every block collects something.
  if (!is_cluster(c.cluster) || c.blocks < 1 || c.tiles < 1 || c.slices < 1 || warps * 32 > kThreads || warps * 2 % c.cluster ||
      c.tiles * M < c.cluster)
    return false;
  w.linear = p, w.M = M, w.m_magic = ((1u << 20) + M - 1) / M;
  w.tile_groups = static_cast<int>(ceil_div(p.N, kTileN * c.tiles));
  w.k_tiles = static_cast<int>(ceil_div(p.K, tile_k(p)));
  w.split_k_tiles = static_cast<int>(ceil_div(w.k_tiles, c.cluster));
  w.cluster_log2 = log2_of_cluster(c.cluster);
  w.ahead = c.ahead / 16 * 16;
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(SplitKReduction<int>::sums(c.tiles, c.slices, M, 1)) : 0;
  const size_t fixed = table_bytes(p) + size_t(warps) * c.depth * k_tile_bytes(p) + 16 + (M > 8 ? 16 : 8) * sizeof(float) +
                       2 * c.tiles * kTileN * sizeof(Channel) +
                       SplitKReduction<int>::sums(c.tiles, c.slices, M, c.cluster) * buffers * sizeof(int);
  const size_t per_k_tile = M * k_tile_x_bytes(p);
  out.shared = lay_out_chunks(w, fixed, per_k_tile, c.slices, static_cast<size_t>(c.shared_memory));
  if (out.shared == 0) return false;
  return !p.quantizes || (w.chunks == 1 && warps >= M);  // once, and a row by whole warps
}

// Microseconds of a configuration, by a model: reading the weight, or the rounds of a multiprocessor's warps, limited by
// arithmetic and by latency, and what comes before and after them: x in flight, the first ring filling and the last one emptying,
// the split-K reduction. Several blocks on a multiprocessor hide that from each other, and from the kernels before and after.
template <class Linear>
double model_time(const Linear& p, const RowwiseDecodeConfig& c, const Launch<Linear>& l, const Device& device, int resident) {
  const Params<Linear>& w = l.params;
  const RowwiseDecodeFit& fit = fits_of(device).rowwise_decode;
  const bool wide = p.M > 8;
  const RowwiseDecodeFit::Costs& cost = multiplied_type(p) == Element::int8 ? fit.int8 : fit.others;
  const auto fourth = [](double a, double b) { return std::pow(std::pow(a, 4) + std::pow(b, 4), 0.25); };
  const double warps = resident * c.tiles * c.slices, filled = std::min(c.depth, w.warp_stages);
  const double read = static_cast<double>(p.N) * weight_row_bytes(p) / device.bandwidth * (fit.read + fit.read_slice / c.slices);
  const double work = warps * (wide ? cost.work_wide : cost.work);
  const double latency = cost.latency / c.depth + (wide ? fit.latency_wide : 0);
  const double rounds = static_cast<double>(l.turns) * w.chunks * w.warp_stages * fourth(work, latency);
  const double x = 1e-3 * resident * w.split_k_tiles * static_cast<double>(p.M * k_tile_x_bytes(p));
  const double x_again = w.chunks > 1 ? fit.x_again * x * (l.turns - 1.0 / w.chunks) + fit.chunk * (w.chunks - 1) * l.turns : 0;
  const double reducing = l.turns * static_cast<double>(ceil_div(c.tiles * p.M, 2 * c.tiles * c.slices)) *
                          (fit.reduction + fit.reduction_slice * c.slices);
  // Less in flight than in any configuration that was measured, or more multiprocessors idle: unknown, and hardly faster.
  const double busy = static_cast<double>(p.N) * c.cluster /
                      (kTileN * c.tiles * static_cast<double>(l.turns) * device.multiprocessors * resident);
  const double few = std::max({1.0, fit.fewest_units / (warps * c.depth), fit.fewest_busy / busy});
  return few * (fit.launch + fourth(read, rounds)) + fit.x * x / w.chunks + x_again + fit.ring * warps * filled +
         cost.filled * filled + reducing + (resident == 1 ? fit.alone : 0) + (c.cluster > 1 ? fit.cluster : 0) +
         (c.cluster > 2 ? fit.large_cluster : 0);
}

// What the model says is fastest.
template <class Linear>
RowwiseDecodeConfig choose_cut(const Linear& p, const Device& device, int most_cluster) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const bool hopper = device.is_hopper();
  const int sm_warps = p.M > 8 ? 16 : 21;  // that have registers
  Choice<RowwiseDecodeConfig> best;
  RowwiseDecodeConfig c{2, 1, 1, 1, 1, shared_memory, kAhead, hopper};
  for (c.depth = 2; c.depth <= 4; c.depth += 2)
    for (c.cluster = 1; c.cluster <= (hopper ? most_cluster : 1); c.cluster *= 2)
      for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
        for (c.slices = 1; c.tiles * c.slices <= 16; ++c.slices)
          for (int resident = 1; resident <= 3 && resident * c.tiles * c.slices <= sm_warps; ++resident) {
            const int slots = clusters_at_once(sms, resident, c.cluster);
            if (slots < 1) continue;
            const int64_t groups = ceil_div(p.N, kTileN * c.tiles);
            c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
            Launch<Linear> l;
            if (!lay_out(p, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024) continue;
            const int at_once = std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms)));
            best.consider(c, model_time(p, c, l, device, at_once));
          }
  return best.config;
}

}  // namespace aoext::cuda::rowwise_decode
