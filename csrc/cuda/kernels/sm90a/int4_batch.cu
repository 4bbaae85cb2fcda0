// Instances of int4_batch.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_batch.h"

#include <algorithm>
#include <iterator>

#include "cuda/kernels/sm90a/int4_batch.cuh"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda {
namespace {

using int4_batch::kSliceRows;
using int4_batch::kUnitK;
using int4_batch::log2_of;
using int4_batch::Walk;

constexpr int kMostRows = 64;

// Applying scales costs the more the smaller the groups, so that other kernels win with fewer rows.
int64_t most_rows(int64_t group_size) { return group_size == 32 ? 16 : group_size == 64 ? 32 : kMostRows; }

struct Instance {
  void (*stage)(const uint16_t*, char*, int, int64_t);
  void (*multiply)(CUtensorMap, CUtensorMap, CUtensorMap, Walk);
  int sub, scale_bytes, unit_bytes;
  int (*step_units)(int);
  int (*step_bytes)(int);
  int (*slices_bytes)(int);
  int (*blocks_bytes)(int, int);
};

template <Element X, Element S, int Sub, int kTokens>
Instance instance() {
  using L = int4_batch::Step<S, Sub, kTokens>;
  using Meet = int4_batch::Meeting<kTokens>;
  return {int4_batch::stage_kernel<X, Sub, kTokens>,
          int4_batch::int4_batch_kernel<X, S, Sub, kTokens>,
          Sub,
          L::kScaleBytes,
          int4_batch::UnitX<Sub, kTokens>::kBytes,
          L::units,
          L::bytes,
          Meet::slices,
          Meet::blocks};
}

template <Element X, Element S, int kTokens>
Instance instance(const Int4Linear& p) {
  switch (p.group_size) {
    case 32: return instance<X, S, 32, kTokens>();
    case 64: return instance<X, S, 64, kTokens>();
    default: return instance<X, S, 128, kTokens>();
  }
}

template <Element X, Element S>
Instance instance(const Int4Linear& p, int tokens) {
  switch (tokens) {
    case 16: return instance<X, S, 16>(p);
    case 32: return instance<X, S, 32>(p);
    default: return instance<X, S, 64>(p);
  }
}

Instance instance(const Int4Linear& p, int tokens) {
  const bool same = p.scale_type == p.type;
  if (p.type == Element::bf16)
    return same ? instance<Element::bf16, Element::bf16>(p, tokens) : instance<Element::bf16, Element::fp32>(p, tokens);
  return same ? instance<Element::fp16, Element::fp16>(p, tokens) : instance<Element::fp16, Element::fp32>(p, tokens);
}

struct Launch {
  Walk walk;
  int shared;  // bytes
};

// The walk of a config, and the memory it takes; false if it does not fit.
bool lay_out(const Int4Linear& p, const BatchConfig& c, const Instance& kernels, Launch& out) {
  Walk& w = out.walk;
  w.N = p.N, w.bias = p.bias, w.y = p.y, w.M = static_cast<int>(p.M);
  w.scale_units = static_cast<int>(std::max<int64_t>(p.group_size / kUnitK, 1));
  w.slices_log2 = log2_of(c.slices), w.cluster_log2 = log2_of(c.cluster);
  w.tile_groups = static_cast<int>(ceil_div(p.N, kSliceRows / c.slices));
  w.units = static_cast<int>(p.K / kUnitK);
  w.part_units = static_cast<int>(ceil_div(ceil_div(w.units, c.cluster), 2) * 2);  // rows of weights come in two units
  w.steps = static_cast<int>(ceil_div(w.part_units, kernels.step_units(c.slices)));
  w.bias_type = static_cast<int>(p.bias_type);
  if (c.cluster > 1 && (c.blocks < w.tile_groups || c.cluster > c.tokens / 4)) return false;  // every block owns something
  const int step = kernels.step_bytes(c.slices);
  const int fixed =
      1024 + int4_batch::Meeting<16>::kBarriers + kernels.slices_bytes(c.slices) + kernels.blocks_bytes(c.slices, c.cluster);
  w.depth = std::min(int4_batch::kMostDepth, (c.shared_memory - fixed) / step);
  out.shared = fixed + w.depth * step;
  return w.depth >= 2;
}

}  // namespace

// A model of the time, in microseconds on an H200: turns of so many steps. Fitted to what benchmarks/README.md lists, for groups
// of 128: 3% off, at most 9%.
namespace {

struct Cost {
  int tokens;
  double step[3];  // of 1, 2 and 4 slices
};

constexpr Cost kCosts[] = {{16, {1.11, 0.58, 0.58}}, {32, {1.30, 0.67, 0.71}}, {kMostRows, {1.89, 0.97, 1.12}}};
constexpr double kTurn = 0.047, kCluster = 1.07, kClusterRow = 0.002;  // of a turn, for each row of x; of two blocks that meet

}  // namespace

bool int4_batch_takes(const Int4Linear& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool groups = p.group_size == 32 || p.group_size == 64 || p.group_size % kUnitK == 0;
  return groups && p.M <= most_rows(p.group_size) && p.type != Element::fp32 &&
         (p.scale_type == p.type || p.scale_type == Element::fp32) && p.K % kUnitK == 0 && p.N % 8 == 0 && p.N < kMost &&
         p.K < kMost;
}

BatchConfig choose_int4_batch(const Int4Linear& p, int sms, int shared_memory) {
  const Cost& cost = *std::find_if(std::begin(kCosts), std::end(kCosts), [&](const Cost& c) { return p.M <= c.tokens; });
  const Instance kernels = instance(p, cost.tokens);
  BatchConfig best{};
  double least = 0;
  for (int slices = 1; slices <= 4; slices *= 2)
    for (int cluster = 1; cluster <= 2; ++cluster) {
      const int64_t groups = ceil_div(p.N, kSliceRows / slices), turns = ceil_div(groups, sms / cluster);
      BatchConfig c{cost.tokens, slices, cluster, static_cast<int>(ceil_div(groups, turns)), shared_memory};
      Launch l;
      if (!lay_out(p, c, kernels, l)) continue;
      const double turn = l.walk.steps * cost.step[log2_of(slices)] + kTurn * cost.tokens;
      const double time = static_cast<double>(turns) * turn + (cluster > 1 ? kCluster + kClusterRow * cost.tokens : 0);
      if (best.tokens != 0 && time >= least) continue;
      least = time;
      best = c;
    }
  return best;
}

size_t int4_batch_workspace(const Int4Linear& p, const BatchConfig& c) {
  return static_cast<size_t>(p.K / kUnitK) * instance(p, c.tokens).unit_bytes;
}

cudaError_t launch_int4_batch(const Int4Linear& p, const BatchConfig& c, void* workspace, cudaStream_t stream) {
  if (p.M > c.tokens || !int4_batch_takes(p)) return cudaErrorInvalidValue;
  const Instance kernels = instance(p, c.tokens);
  Launch l;
  if (!lay_out(p, c, kernels, l)) return cudaErrorInvalidValue;
  l.walk.x = static_cast<const char*>(workspace);
  const int64_t rows = kSliceRows / c.slices, groups = p.K / p.group_size;
  const int64_t scale_rows = kUnitK / kernels.sub * (l.walk.scale_units == 1 ? kernels.step_units(c.slices) : 1);
  const TensorMap w(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {p.K / 2, p.N}, {p.K / 2},
                    {kUnitK, rows});
  const auto scale_map = [&](const void* data) {
    return TensorMap(map_type(p.scale_type), data, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, groups}, {p.N * kernels.scale_bytes},
                     {rows, scale_rows});
  };
  const TensorMap scale = scale_map(p.scale), zero = scale_map(p.zero_point);
  if (!w.valid || !scale.valid || !zero.valid) return cudaErrorNotSupported;
  auto error = cudaFuncSetAttribute(kernels.multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared);
  if (error != cudaSuccess) return error;

  kernels.stage<<<l.walk.units, c.tokens * 4, 0, stream>>>(static_cast<const uint16_t*>(p.x), static_cast<char*>(workspace),
                                                           l.walk.M, p.K);
  if ((error = cudaGetLastError()) != cudaSuccess) return error;

  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = c.cluster, attributes[1].val.clusterDim.y = 1, attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(c.cluster, std::min(c.blocks, l.walk.tile_groups));
  launch.blockDim = dim3(int4_batch::kThreads);
  launch.dynamicSmemBytes = l.shared, launch.stream = stream;
  launch.attrs = attributes, launch.numAttrs = c.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&launch, kernels.multiply, w.map, scale.map, zero.map, l.walk);
}

}  // namespace aoext::cuda
