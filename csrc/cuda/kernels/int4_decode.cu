// Instances of int4_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_decode.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/int4_decode.cuh"
#include "cuda/kernels/launch.h"

namespace aoext::cuda {
namespace {

using int4_decode::kThreads;
using int4_decode::kTileN;
using int4_decode::kUnitBytes;
using int4_decode::kUnitK;
using int4_decode::Walk;
using int4_decode::Way;
using Kernel = void (*)(Walk);

// The bytes of scales that can be copied at once, 16 or 4; 0 where their alignment is less.
int scale_bytes(const Int4Linear& p) {
  const auto row = static_cast<uintptr_t>(p.N * (p.scale_type == Element::fp32 ? 4 : 2));
  const auto all = reinterpret_cast<uintptr_t>(p.scale) | reinterpret_cast<uintptr_t>(p.zero_point) | row;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 0;
}

// The k that share a scale, as far as there are kernels for them: 32 serves any group.
int sub_of(const Int4Linear& p) { return p.group_size % kUnitK == 0 && scale_bytes(p) ? kUnitK : 32; }

template <Element X, Element S, int Sub, int Rows, Way Steps>
Kernel kernel_of(const DecodeConfig& c) {
  using int4_decode::int4_decode_kernel;
  const int shape = c.warp_tiles * 10 + c.units;
  if (shape == 12) return int4_decode_kernel<X, S, Sub, Rows, Steps, 1, 2>;
  if constexpr (Steps != Way::registers || Rows == 16)
    if (shape == 21) return int4_decode_kernel<X, S, Sub, Rows, Steps, 2, 1>;
  if constexpr (Steps == Way::registers && Rows < 16)
    if (shape == 22) return int4_decode_kernel<X, S, Sub, Rows, Steps, 2, 2>;
  return nullptr;
}

template <Element X, Element S, int Sub, Way Steps>
Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  if constexpr (Sub < kUnitK)
    if (p.M <= 2) return kernel_of<X, S, Sub, 2, Steps>(c);
  return p.M <= 8 ? kernel_of<X, S, Sub, 8, Steps>(c) : kernel_of<X, S, Sub, 16, Steps>(c);
}

template <Element X, Element S>
Kernel kernel_of_scale(const Int4Linear& p, const DecodeConfig& c) {
  if (sub_of(p) < kUnitK) return kernel_of<X, S, 32, Way::ring>(p, c);
  return c.depth == 1 ? kernel_of<X, S, kUnitK, Way::registers>(p, c) : kernel_of<X, S, kUnitK, Way::ring>(p, c);
}

template <Element X>
Kernel kernel_of(const Int4Linear& p, const DecodeConfig& c) {
  if (p.scale_type == Element::fp32) return kernel_of_scale<X, Element::fp32>(p, c);
  if (p.scale_type != X) return nullptr;
  return scale_bytes(p) ? kernel_of_scale<X, X>(p, c) : kernel_of<X, X, 32, Way::loose>(p, c);
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
  const bool registers = c.depth == 1;
  const bool cluster = c.cluster == 1 || c.cluster == 2 || c.cluster == 4 || c.cluster == 8;
  const bool depth = (registers && sub == kUnitK) || c.depth == 2 || c.depth == 3 || c.depth == 4 || c.depth == 6;
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
  w.part_units = static_cast<int>(ceil_div(ceil_div(w.units, c.cluster), c.units) * c.units);
  w.depth = registers ? 2 : c.depth, w.ahead = c.ahead / 16 * 16;
  w.cluster_log2 = c.cluster == 8 ? 3 : c.cluster / 2;
  w.bias_type = static_cast<int>(p.bias_type);
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(Meeting<float>::sums(tiles, c.slices, M, 1)) : 0;
  const Way way = !w.scale_bytes ? Way::loose : registers ? Way::registers : Way::ring;
  const int step_bytes = int4_decode::step_bytes(way, c.warp_tiles * c.units, sub, p.scale_type == Element::fp32 ? 4 : 2);
  const size_t fixed = size_t(warps) * w.depth * step_bytes + int4_decode::kFixedBytes +
                       Meeting<float>::sums(tiles, c.slices, M, c.cluster) * buffers * sizeof(float);
  const size_t per_unit = int4_decode::unit_x_bytes(M) + int4_decode::unit_sum_bytes(M, sub) + int4_decode::unit_back_bytes(M);
  const int step = c.slices * c.units;
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

// body(config, its launch, blocks of it that a multiprocessor has at once) for all cuts that may be worth it.
template <class Body>
void each_cut(const Int4Linear& p, int sms, int shared_memory, bool hopper, Body&& body) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  constexpr int kSmWarps = 16;  // that have registers
  DecodeConfig c{1, 2, 1, 1, 1, 1, 1, shared_memory, kAhead, hopper};
  for (c.warp_tiles = 1; c.warp_tiles <= 2; ++c.warp_tiles)
    for (c.units = 1; c.units <= 2; ++c.units)
      for (c.depth = 1; c.depth <= 3; ++c.depth) {
        if (!kernel_of(p, c)) continue;
        for (c.cluster = 1; c.cluster <= (hopper ? 8 : 1); c.cluster *= 2)
          for (c.tiles = 1; c.tiles <= kSmWarps; ++c.tiles)
            for (c.slices = 1; c.tiles * c.slices <= kSmWarps; ++c.slices)
              for (int resident = 1; resident <= 3 && resident * c.tiles * c.slices <= kSmWarps; ++resident) {
                // Clusters of more than two leave some multiprocessors of a GPC idle.
                const int slots = c.cluster > 2 ? sms * resident * 11 / 12 / c.cluster : sms * resident / c.cluster;
                if (slots < 1) continue;
                const int64_t groups = ceil_div(p.N, kTileN * c.tiles * c.warp_tiles);
                c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
                Launch l;
                if (!lay_out(p, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024) continue;
                body(c, l, std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms))));
              }
      }
}

}  // namespace

DecodeConfig choose_int4_decode(const Int4Linear& p, int sms, int shared_memory, bool hopper) {
  DecodeConfig best{};
  double best_time = 1e30;
  each_cut(p, sms, shared_memory, hopper, [&](const DecodeConfig& c, const Launch& l, int resident) {
    const double time = model_time(p, c, l, sms, resident);
    if (time < best_time) best_time = time, best = c;
  });
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
