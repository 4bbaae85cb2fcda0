// Launching int4_ring.cuh, and the choice of its configurations: what its kernels for one weight and for those of experts share.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/kernels/few_rows.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/int4_ring.cuh"
#include "cuda/kernels/int4_ring.h"

namespace aoext::cuda::int4_ring {

constexpr int kMostWarps = kFewRowsThreads / 32;  // of a block, and of a multiprocessor, which has registers for so many

// The bytes of scales that can be copied at once, 16 or 4; 0 where their alignment is less.
inline int scale_bytes(const Int4Linear& p) {
  const auto row = static_cast<uintptr_t>(p.N * (p.scale_type == Element::fp32 ? 4 : 2));
  const auto all = reinterpret_cast<uintptr_t>(p.scale) | reinterpret_cast<uintptr_t>(p.zero_point) | row;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 0;
}

// The k that share a scale, as far as there are kernels for them: 32 serves any group.
inline int sub_of(const Int4Linear& p) {
  constexpr int kUnitRows = 8;
  return p.group_size % kTileK == 0 && p.M <= kUnitRows && scale_bytes(p) ? kTileK : 32;
}

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"type", "scale", "sub", "rows", "ringed", "warp_tiles"};

// Groups of whole k-tiles need aligned scales and serve up to 8 rows; scales of float32 are aligned always. Two tiles a warp of
// 16 rows spill but for the most usual scales.
constexpr bool has_kernel(bool own_scales, int sub, int rows, bool ringed, int warp_tiles) {
  if (sub == kTileK && (rows != 8 || !ringed)) return false;
  if (!own_scales && !ringed) return false;
  return warp_tiles == 1 || rows < 16 || (ringed && own_scales);
}

// f<X, S, kSub, kRows, kRinged, kTiles>(key) of each kernel for so many rows.
template <int... kRows, class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<decltype(x)::value, Element::fp32>([&](auto s) {
      each<32, kTileK>([&](auto sub) {
        each<kRows...>([&](auto rows) {
          each<false, true>([&](auto ringed) {
            each<1, 2>([&](auto tiles) {
              constexpr Element X = decltype(x)::value, S = decltype(s)::value;
              constexpr int kSub = decltype(sub)::value, kOfRows = decltype(rows)::value, kTiles = decltype(tiles)::value;
              constexpr bool kRinged = decltype(ringed)::value;
              if constexpr (has_kernel(X == S, kSub, kOfRows, kRinged, kTiles))
                f.template operator()<X, S, kSub, kOfRows, kRinged, kTiles>(Key{int(X), int(S), kSub, kOfRows, kRinged, kTiles});
            });
          });
        });
      });
    });
  });
}

inline Key key_of(const Int4Linear& p, const RingConfig& c) {
  const bool ringed = p.scale_type == Element::fp32 || scale_bytes(p);
  const int sub = sub_of(p), rows = sub < kTileK && p.M <= 2 ? 2 : p.M <= 8 ? 8 : 16;
  return {int(p.type), int(p.scale_type), sub, rows, ringed, c.warp_tiles};
}

using Launch = FewRowsLaunch<Params>;

// The parameters of a configuration, and the memory it takes; false if it does not fit. A launch may have products of fewer rows.
inline bool lay_out(const Int4Linear& p, int64_t fewest_rows, const RingConfig& c, Launch& out) {
  if (c.depth != 2 && c.depth != 3) return false;
  Params& w = out.params;
  const int sub = sub_of(p), M = static_cast<int>(p.M), stage_k_tiles = kStageTiles / c.warp_tiles;
  const size_t sums = lay_out_tiles(out, c, {p.M, fewest_rows, p.N, ceil_div(p.K, kTileK), c.warp_tiles, stage_k_tiles});
  if (sums == 0) return false;
  w.set(p, sub);
  w.scale_bytes = scale_bytes(p), w.depth = c.depth, w.ahead = c.ahead / 16 * 16;
  const int stage_bytes = int4_ring::stage_bytes(w.scale_bytes > 0, sub, p.scale_type == Element::fp32 ? 4 : 2);
  const size_t fixed = size_t(c.tiles * c.k_splits) * w.depth * stage_bytes + int4_ring::kFixedBytes + sums;
  const size_t per_k_tile = int4_ring::k_tile_x_bytes(M) + int4_ring::k_tile_sum_bytes(M, sub) + int4_ring::k_tile_back_bytes(M);
  return lay_out_chunks(out, c, stage_k_tiles, fixed, per_k_tile);
}

// What differs between kernels.
inline const RingFit::Costs& costs_of(const RingFit& fit, const Int4Linear& p) {
  if (sub_of(p) == kTileK) return fit.whole_units;
  return p.M <= 2 ? fit.two_rows : p.M <= 8 ? fit.eight_rows : fit.more_rows;
}

// Stages of a ring: two, but three where a multiprocessor has so few warps that those of the next kernel fit beside them.
constexpr int kFewWarps = 8;
constexpr int depth_of(int warps) { return warps <= kFewWarps ? 3 : 2; }

// Microseconds of a configuration, by a model: reading the weight, by pieces of output channels; the stages of a multiprocessor's
// warps; reading x and laying it out, once or in every turn where it does not fit at once; the first stages; the split-K
// reduction. Several blocks on a multiprocessor hide that from each other, few warps from the next kernel.
inline double model_time(const Int4Linear& p, const RingConfig& c, const Launch& l, const Device& device, int resident) {
  const Params& w = l.params;
  const RingFit& fit = fits_of(device).int4_ring;
  const RingFit::Costs& cost = costs_of(fit, p);
  constexpr double kStageKb = kStageTiles;
  const double m = w.M, turns = l.turns, warps = resident * c.tiles * c.k_splits;
  const double stage_k_tiles = kStageKb / c.warp_tiles;
  // The quarter of a multiprocessor with the most of a block's warps has so many times four.
  const double busiest = 4.0 * resident * static_cast<double>(ceil_div(c.tiles * c.k_splits, 4));
  const double work = busiest * kStageKb * (cost.work + cost.work_m * m / c.warp_tiles);
  const double stages = turns * w.chunks * w.warp_stages * std::hypot(work, fit.latency * kStageKb);
  const double busy =
      static_cast<double>(p.N) * c.cluster / (kTileN * c.warp_tiles * c.tiles * turns * device.multiprocessors * resident);
  const double bytes = static_cast<double>(p.N) * p.K * (0.5 + 4.0 / std::min<int64_t>(p.group_size, kTileK));
  const double read = bytes / device.bandwidth * (cost.read + fit.slice_read / (c.k_splits * stage_k_tiles)) *
                      (fit.read_busy + fit.read_idle / std::min(busy, 1.0));
  const double x = m * resident * w.split_k_tiles / w.chunks, again = w.chunks > 1 ? turns * w.chunks - 1 : 0;
  return fit.launch + read + stages + (fit.x + fit.x_again * again) * x +
         cost.fill * warps * kStageKb * std::min(c.depth, w.warp_stages) +
         reduction_time(fits_of(device).reduction, c, l.turns, warps, c.warp_tiles, p.M) + (resident == 1 ? fit.alone : 0) -
         (warps <= kFewWarps ? fit.few_warps : 0);
}

// The fastest of those that `serves(config)` says there is a kernel for.
template <class Serves>
Choice<RingConfig> choose(const Int4Linear& p, int64_t fewest_rows, const Device& device, Serves&& serves) {
  constexpr int kAhead = 1024, kMostBlocks = 65535, kMostKSplits = 8, kFewestWarps = 4;
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const Features features = device.features;
  Choice<RingConfig> best;
  RingConfig c{1, 2, 1, 1, 1, 1, shared_memory, kAhead, features.overlap};
  for (c.warp_tiles = 1; c.warp_tiles <= 2 && serves(c); ++c.warp_tiles)
    for (c.cluster = 1; c.cluster <= (features.clusters ? 8 : 1); c.cluster *= 2)
      for (int tiles : {1, 2, 3, 4, 5, 6, 8, 16})  // others took longer than the model says
        for (c.k_splits = 1; c.k_splits <= kMostKSplits; ++c.k_splits)
          for (int resident = 1; resident <= 3 && resident * tiles * c.k_splits <= kMostWarps; ++resident) {
            const int slots = clusters_at_once(sms, resident, c.cluster);
            if (slots < 1 || tiles * c.k_splits < kFewestWarps) continue;
            c.tiles = tiles;
            const int64_t groups = ceil_div(p.N, kTileN * tiles * c.warp_tiles);
            c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
            const int at_once = blocks_at_once(sms, resident, c.cluster, c.blocks);
            c.depth = depth_of(at_once * tiles * c.k_splits);
            Launch l;
            if (!lay_out(p, fewest_rows, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024)
              continue;
            best.consider(c, model_time(p, c, l, device, at_once));
          }
  return best;
}

}  // namespace aoext::cuda::int4_ring
