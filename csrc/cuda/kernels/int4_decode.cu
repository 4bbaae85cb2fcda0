// Instances of int4_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_decode.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/int4_decode.cuh"
#include "cuda/kernels/launch.h"

namespace aoext::cuda {
namespace {

using int4_decode::kStepUnits;
using int4_decode::kThreads;
using int4_decode::kTileN;
using int4_decode::kUnitBytes;
using int4_decode::kUnitK;
using int4_decode::Walk;
using Kernel = void (*)(Walk);

// The bytes of scales that can be copied at once, 16 or 4; 0 where their alignment is less.
int scale_bytes(const Int4Linear& p) {
  const auto row = static_cast<uintptr_t>(p.N * (p.scale_type == Element::fp32 ? 4 : 2));
  const auto all = reinterpret_cast<uintptr_t>(p.scale) | reinterpret_cast<uintptr_t>(p.zero_point) | row;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 0;
}

// The k that share a scale, as far as there are kernels for them: 32 serves any group.
int sub_of(const Int4Linear& p) { return p.group_size % kUnitK == 0 && scale_bytes(p) ? kUnitK : 32; }

template <Element X, Element S, int Sub, int Rows, bool Ringed>
Kernel kernel_of(const DecodeConfig& c) {
  using int4_decode::int4_decode_kernel;
  if (c.warp_tiles == 1) return int4_decode_kernel<X, S, Sub, Rows, Ringed, 1>;
  if (c.warp_tiles == 2) return int4_decode_kernel<X, S, Sub, Rows, Ringed, 2>;
  return nullptr;
}

template <Element X, Element S, int Sub, bool Ringed>
Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  if constexpr (Sub < kUnitK)
    if (p.M <= 2) return kernel_of<X, S, Sub, 2, Ringed>(c);
  return p.M <= 8 ? kernel_of<X, S, Sub, 8, Ringed>(c) : kernel_of<X, S, Sub, 16, Ringed>(c);
}

template <Element X>
Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  const bool unit = sub_of(p) == kUnitK;
  if (p.scale_type == Element::fp32)
    return unit ? kernel_of<X, Element::fp32, kUnitK, true>(p, c) : kernel_of<X, Element::fp32, 32, true>(p, c);
  if (p.scale_type != X) return nullptr;
  if (!scale_bytes(p)) return kernel_of<X, X, 32, false>(p, c);
  return unit ? kernel_of<X, X, kUnitK, true>(p, c) : kernel_of<X, X, 32, true>(p, c);
}

Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  if (p.M > 16 || p.type == Element::fp32) return nullptr;
  return p.type == Element::fp16 ? kernel_of<Element::fp16>(p, c) : kernel_of<Element::bf16>(p, c);
}

struct Launch {
  Walk walk;
  int turns;
  size_t shared;  // bytes
};

// The walk of a config, and the memory it takes; false if it does not fit.
bool lay_out(const Int4Linear& p, const DecodeConfig& c, Launch& out) {
  const auto shared_limit = static_cast<size_t>(c.shared_memory);
  Walk& w = out.walk;
  const int warps = c.tiles * c.slices, tiles = c.tiles * c.warp_tiles, sub = sub_of(p), M = static_cast<int>(p.M);
  const int units = kStepUnits / c.warp_tiles;  // of k, that a step takes
  const bool cluster = c.cluster == 1 || c.cluster == 2 || c.cluster == 4 || c.cluster == 8;
  const bool depth = c.depth == 2 || c.depth == 3 || c.depth == 4 || c.depth == 6;
  // A half warp either sends or collects, and every block collects something.
  if (!cluster || !depth || c.blocks < 1 || c.tiles < 1 || c.slices < 1 || warps * 32 > kThreads || warps * 2 % c.cluster ||
      tiles * M < c.cluster)
    return false;
  w.K = p.K, w.N = p.N, w.x = p.x, w.weight = p.weight, w.scale = p.scale, w.zero_point = p.zero_point;
  w.bias = p.bias, w.y = p.y, w.M = M, w.m_magic = ((1u << 20) + M - 1) / M;
  w.sub_per_group = static_cast<int>(p.group_size / sub);
  w.group_magic = static_cast<uint32_t>(ceil_div(int64_t{1} << 32, w.sub_per_group));
  w.scale_groups = static_cast<int>(p.K / p.group_size), w.scale_bytes = scale_bytes(p);
  w.tile_groups = static_cast<int>(ceil_div(p.N, kTileN * tiles));
  w.units = static_cast<int>(ceil_div(p.K, kUnitK));
  w.part_units = static_cast<int>(ceil_div(ceil_div(w.units, c.cluster), units) * units);
  w.depth = c.depth, w.ahead = c.ahead / 16 * 16;
  w.cluster_log2 = c.cluster == 8 ? 3 : c.cluster / 2;
  w.bias_type = static_cast<int>(p.bias_type);
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(Meeting<float>::sums(tiles, c.slices, M, 1)) : 0;
  const int scales = w.scale_bytes ? int4_decode::step_scale_bytes(sub, p.scale_type == Element::fp32 ? 4 : 2) : 0;
  const size_t fixed = size_t(warps) * c.depth * (kStepUnits * kUnitBytes + scales) + int4_decode::kFixedBytes +
                       Meeting<float>::sums(tiles, c.slices, M, c.cluster) * buffers * sizeof(float);
  const size_t per_unit = int4_decode::unit_x_bytes(M) + int4_decode::unit_sum_bytes(M, sub) + int4_decode::unit_back_bytes(M);
  const int step = c.slices * units;
  if (fixed + per_unit * step > shared_limit) return false;
  const int room = static_cast<int>((shared_limit - fixed) / per_unit);
  if (w.part_units <= room) {
    w.chunks = 1, w.chunk_units = w.part_units;
  } else {
    w.chunks = static_cast<int>(ceil_div(w.part_units, room / step * step));
    w.chunk_units = static_cast<int>(ceil_div(ceil_div(w.part_units, w.chunks), step) * step);
    w.chunks = static_cast<int>(ceil_div(w.part_units, w.chunk_units));
  }
  w.warp_steps = static_cast<int>(ceil_div(w.chunk_units, step));
  out.shared = fixed + per_unit * w.chunk_units;
  return true;
}

double model_time(const Int4Linear& p, const DecodeConfig& c, const Launch& l, int sms, int resident) {
  const Walk& w = l.walk;
  const double warps = resident * c.tiles * c.slices;
  const double read = static_cast<double>(p.N) * p.K / 2 * (1 + 8.0 / std::min<int64_t>(p.group_size, 128)) / 4.5e6;
  const double rounds = static_cast<double>(l.turns) * w.chunks * w.warp_steps * std::max(warps * 0.06, 0.8 / c.depth);
  const double x = 0.008 * p.M * resident * w.part_units * (w.chunks > 1 ? l.turns : 1);
  const double few = std::max(1.0, 32 / (warps * c.depth));
  return few * std::max(read, rounds) + x + 0.4 * l.turns + (c.cluster > 1 ? 0.5 : 0) + (c.cluster > 2 ? 0.5 : 0);
}

}  // namespace

DecodeConfig choose_int4_decode(const Int4Linear& p, int sms, int shared_memory, bool hopper) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  const int sm_warps = 16;  // that have registers
  DecodeConfig best{2, 2, 1, 4, 1, static_cast<int>(std::min<int64_t>(ceil_div(p.N, 2 * kTileN), kMostBlocks)),
                    shared_memory, kAhead, hopper};
  DecodeConfig c = best;
  double best_time = 1e30;
  for (c.warp_tiles = 1; c.warp_tiles <= 2; ++c.warp_tiles)
    for (int depth : {2, 3, 4, 6})
      for (c.cluster = 1; c.cluster <= (hopper ? 8 : 1); c.cluster *= 2)
        for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
          for (c.slices = 1; c.tiles * c.slices <= kThreads / 32; ++c.slices)
            for (int resident = 1; resident <= 3 && resident * c.tiles * c.slices <= sm_warps; ++resident) {
              // Clusters of more than two leave some multiprocessors of a GPC idle.
              const int slots = c.cluster > 2 ? sms * resident * 11 / 12 / c.cluster : sms * resident / c.cluster;
              if (slots < 1) continue;
              const int64_t groups = ceil_div(p.N, kTileN * c.tiles * c.warp_tiles);
              c.depth = depth;
              c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
              Launch l;
              if (!lay_out(p, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024) continue;
              const int at_once = std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms)));
              const double time = model_time(p, c, l, sms, at_once);
              if (time < best_time) best_time = time, best = c;
            }
  return best;
}

cudaError_t launch_int4_decode(const Int4Linear& p, const DecodeConfig& c, cudaStream_t stream) {
  const Kernel kernel = kernel_of(p, c);
  Launch l;
  if (!kernel || p.K % 32 || p.group_size % 32 || !lay_out(p, c, l)) return cudaErrorInvalidValue;
  const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.shared));
  if (error != cudaSuccess) return error;
  const dim3 blocks(c.cluster, std::min(c.blocks, l.walk.tile_groups)), threads(32, c.slices, c.tiles);
  return launch(kernel,
                Grid{blocks, threads, l.shared, stream, static_cast<unsigned>(c.cluster),
                     c.overlaps ? Overlap::after_ours : Overlap::never},
                l.walk);
}

}  // namespace aoext::cuda
