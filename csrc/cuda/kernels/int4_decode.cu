// Instances of int4_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_decode.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/int4_decode.cuh"
#include "cuda/kernels/launch.h"

namespace aoext::cuda {
namespace {

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

// How steps come to a warp. Groups of 128 could do either way: a ring reads ahead further, and costs shared memory twice the
// bytes of weights, which it has not to spare where each of many rows m reads x from there.
Way way_of(const Int4Linear& p) {
  constexpr int kRingRows = 4;
  if (scale_bytes(p) == 0) return Way::loose;
  return sub_of(p) == kUnitK && p.M > kRingRows ? Way::registers : Way::ring;
}

template <Element X, Element S, int Sub, int Rows, Way Steps>
Kernel kernel_of(const DecodeConfig& c) {
  using int4_decode::int4_decode_kernel;
  const int shape = c.warp_tiles * 10 + c.units;
  if (shape == 12) return int4_decode_kernel<X, S, Sub, Rows, Steps, 1, 2>;
  if constexpr (Steps == Way::ring || (Steps == Way::registers && Rows == 16))
    if (shape == 21) return int4_decode_kernel<X, S, Sub, Rows, Steps, 2, 1>;
  if constexpr (Steps == Way::registers && Rows == 8)
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
  return way_of(p) == Way::ring ? kernel_of<X, S, kUnitK, 8, Way::ring>(c) : kernel_of<X, S, kUnitK, Way::registers>(p, c);
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

// Of a block, and of a multiprocessor, which has registers for so many.
int most_warps(const Int4Linear& p, const DecodeConfig& c) {
  return int4_decode::most_threads(way_of(p), p.M <= 8 ? 8 : 16, c.warp_tiles) / 32;
}

// The walk of a config, and the memory it takes; false if it does not fit.
bool lay_out(const Int4Linear& p, const DecodeConfig& c, Launch& out) {
  const auto shared_limit = static_cast<size_t>(c.shared_memory);
  Walk& w = out.walk;
  const int warps = c.tiles * c.slices, tiles = c.tiles * c.warp_tiles, sub = sub_of(p), M = static_cast<int>(p.M);
  const bool cluster = c.cluster == 1 || c.cluster == 2 || c.cluster == 4 || c.cluster == 8;
  const bool depth = way_of(p) == Way::registers ? c.depth == 1 : c.depth == 2 || c.depth == 3;
  // A half warp either sends or collects, and every block collects something.
  if (!cluster || !depth || c.blocks < 1 || c.tiles < 1 || c.slices < 1 || warps > most_warps(p, c) || warps * 2 % c.cluster ||
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
  w.depth = std::max(c.depth, 2), w.ahead = c.ahead / 16 * 16;
  w.cluster_log2 = c.cluster == 8 ? 3 : c.cluster / 2;
  w.bias_type = static_cast<int>(p.bias_type);
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(Meeting<float>::sums(tiles, c.slices, M, 1)) : 0;
  const int step_bytes = int4_decode::step_bytes(way_of(p), c.warp_tiles * c.units, sub, p.scale_type == Element::fp32 ? 4 : 2);
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

// What differs between kernels: µs for a µs of reading, for a KB of a warp's weights and more per m, and for those of the first
// steps, on their way; and µs that a warp needs for a KB, however alone it is.
struct Costs {
  double read, work, work_m, fill, alone;
};

Costs costs_of(const Int4Linear& p) {
  if (sub_of(p) < kUnitK) {
    if (p.M <= 2) return {1.02092, 0.01418, 0.00179, 0.0118, 0.14042};
    return p.M <= 8 ? Costs{1.13931, 0.01454, 0.00191, 0.01118, 0.28191} : Costs{1.92358, 0.04515, 0.00005, 0.00847, 0};
  }
  if (way_of(p) == Way::ring) return {1.0554, 0.00861, 0.00334, 0.00725, 0.26989};
  return p.M <= 8 ? Costs{1.14676, 0.00691, 0.00138, 0.01427, 0.22478} : Costs{1.61607, 0.0216, 0.00088, 0, 0};
}

// Microseconds of a cut, by a model: reading the weight, by pieces of rows, or the steps of a multiprocessor's warps; x on its
// way and laid out, once or in every turn where it does not fit at once; the first steps; sums that meet, once a turn. Several
// blocks on a multiprocessor hide that from each other. The constants are a fit to cuts measured on an H200, M = 1 to 16, groups
// of 32 and 128, eight N x K.
double model_time(const Int4Linear& p, const DecodeConfig& c, const Launch& l, int sms, int resident) {
  const Walk& w = l.walk;
  const Costs cost = costs_of(p);
  const double m = w.M, kb = c.warp_tiles * c.units, warps = resident * c.tiles * c.slices, turns = l.turns;
  // The quarter of a multiprocessor with the most of a block's warps has so many times four.
  const double busiest = 4.0 * resident * static_cast<double>(ceil_div(c.tiles * c.slices, 4));
  const double work = busiest * kb * (cost.work + cost.work_m * m / c.warp_tiles);
  const double steps = turns * w.chunks * w.warp_steps * std::hypot(work, cost.alone * kb);
  const double busy = static_cast<double>(p.N) * c.cluster / (kTileN * c.warp_tiles * c.tiles * turns * sms * resident);
  const double bytes = static_cast<double>(p.N) * p.K * (0.5 + 4.0 / std::min<int64_t>(p.group_size, kUnitK));
  const double read = bytes / 4.66e6 * (cost.read + 0.1732 / (c.slices * c.units)) * (0.52 + 0.48 / std::min(busy, 1.0));
  const double x = m * resident * w.part_units / w.chunks, again = w.chunks > 1 ? turns * w.chunks - 1 : 0;
  const double met = 0.00215 * m * warps * c.warp_tiles + (c.cluster > 1 ? 0.477 : 0) +
                     0.494 * static_cast<double>(ceil_div(c.warp_tiles * w.M, 2 * c.slices));
  const double few = std::max(1.0, 12 / warps);  // fewer than any of those cuts has: not known, and hardly better
  return 1.587 + few * std::pow(std::pow(read, 4) + std::pow(steps, 4), 0.25) + 0.00743 * x + again * (0.00661 * x + 1.169) +
         turns * met + cost.fill * warps * kb * std::min(c.depth, w.warp_steps) + (resident == 1 ? 0.611 : 0) +
         (c.cluster > 2 ? 0.184 : 0);
}

// body(config, its launch, blocks of it that a multiprocessor has at once) for all cuts that may be worth it.
template <class Body>
void each_cut(const Int4Linear& p, int sms, int shared_memory, bool hopper, Body&& body) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  DecodeConfig c{1, 2, 1, 1, 1, 1, 1, shared_memory, kAhead, hopper};
  for (c.warp_tiles = 1; c.warp_tiles <= 2; ++c.warp_tiles)
    for (c.units = 1; c.units <= 2; ++c.units)
      for (c.depth = 1; c.depth <= 3; ++c.depth) {
        if (!kernel_of(p, c)) continue;
        const int most = most_warps(p, c);
        for (c.cluster = 1; c.cluster <= (hopper ? 8 : 1); c.cluster *= 2)
          for (c.tiles = 1; c.tiles <= most; ++c.tiles)
            for (c.slices = 1; c.tiles * c.slices <= most; ++c.slices)
              for (int resident = 1; resident <= 3 && resident * c.tiles * c.slices <= most; ++resident) {
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
