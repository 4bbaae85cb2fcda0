// What the parts of scaled_wgmma.cu share, one for each ScaledBy: tiles that there are kernels for, and the launch.
#pragma once

#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/scaled_wgmma.h"
#include "cuda/kernels/sm90a/rowwise_wgmma_launch.h"
#include "cuda/kernels/sm90a/scaled_wgmma.cuh"

namespace aoext::cuda::wgmma {

// How a problem's w is scaled, and chunks of a k-tile that have scales of their own.
struct ScaledKind {
  ScaledBy by;
  int sub;
};

ScaledKind scaled_kind(const ScaledLinear& p);

// From the values of one chunk of x to those of the next: whole pieces of 16 bytes.
inline int64_t chunk_pitch(int64_t M) { return ceil_div(M, 4) * 4; }

// Tiles of a kind and type: all of them, those that results of bf16 have, and few.
constexpr bool has_scaled_tile(ScaledBy by, Element type, Element output, int block_n, int block_m) {
  if (by == ScaledBy::group) return block_n == 128 && (block_m == 128 || block_m == 256);
  const bool few = (block_n == 64 && block_m == 32) || (block_n == 128 && block_m == 128) ||
                   (by == ScaledBy::tile && block_n == 64 && block_m == 128);  // the only one for many rows by scale blocks of 64
  if (output != Element::bf16) return few;
  if (by == ScaledBy::tile && type == Element::e4m3) return true;
  return few || (block_n == 64 && block_m == 64);
}

// Those of experts.
constexpr bool has_expert_tile(ScaledBy by, int block_n, int block_m) {
  return by != ScaledBy::group && ((block_n == 64 && block_m == 32) || (block_n == 128 && block_m == 128) ||
                                   (by == ScaledBy::tile ? block_n == 128 && block_m == 64 : block_n == 64 && block_m == 64));
}

// The fewest chunks of a k-tile: float8 whose results are fp16 the tensor cores add up for 64 k alone.
constexpr int least_sub(Element type, Element output) { return type == Element::e4m3 && output == Element::fp16 ? 2 : 1; }

template <int block_n, int block_m>
struct ScaledTile {
  static constexpr int kBlockN = block_n, kBlockM = block_m;
  static bool is_of(const WgmmaConfig& c) { return c.block_n == kBlockN && c.block_m == kBlockM; }
};

template <class F>
void for_each_scaled_tile(F&& f) {
  const auto call = [&](auto... tiles) { (f(tiles), ...); };  // ScaledTile<block_n, block_m>
  call(ScaledTile<64, 32>(), ScaledTile<64, 64>(), ScaledTile<64, 128>(), ScaledTile<128, 32>(), ScaledTile<128, 64>(),
       ScaledTile<128, 128>(), ScaledTile<128, 256>());
}

// Without what scales the sums.
inline RowwiseLinear without_scales(const ScaledLinear& p) {
  RowwiseLinear r{};
  r.x = p.x, r.weight = p.weight, r.bias = p.bias, r.y = p.y;
  r.M = p.M, r.N = p.N, r.K = p.K, r.type = r.weight_type = p.type, r.bias_type = p.bias_type, r.output = p.output;
  r.ends = p.ends, r.experts = p.experts;
  return r;
}

template <ScaledBy kBy, Element kType, class Output, class Scheduler, int kBlockN, int kBlockM, int kSub>
cudaError_t launch_scaled(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream) {
  using Empty = ScaledLayout<kBy, Output, Scheduler, kBlockN, kBlockM, 0, kSub>;
  constexpr int kSharedMemory = (227 << 10) - int(sizeof(WorkOf<Scheduler>));
  constexpr int kStages =
      (kSharedMemory - Empty::kBytes) / (Empty::kStage + Empty::kStageValues + 16) / Empty::kTurns * Empty::kTurns;
  using L = ScaledLayout<kBy, Output, Scheduler, kBlockN, kBlockM, kStages, kSub>;
  constexpr int kChunk = kLine / kSub;

  ScaledParams<Scheduler> a{};
  a.rowwise = rowwise_params<Scheduler>(without_scales(p), c);
  const auto chunks = [&](int64_t group, int64_t groups) { return groups == 1 ? 1 << 30 : static_cast<int>(group / kChunk); };
  a.scale = p.scale, a.scale_type = p.scale_type, a.scale_n = p.scale_n, a.expert_scales = scale_rows(p) * w_groups(p);
  a.block_n = static_cast<int>(p.block_n);
  a.w_groups = static_cast<int>(w_groups(p)), a.w_chunks = chunks(p.w_group, w_groups(p));
  a.x_values = L::kXIsLeft ? by_chunks : p.x_scale;
  a.x_groups = static_cast<int>(L::kXIsLeft ? chunk_pitch(p.M) : x_groups(p));
  a.x_chunk = chunks(p.x_group, x_groups(p));
  a.x_chunks = L::kXIsLeft ? static_cast<int>(x_groups(p)) : a.x_chunk;

  const TensorMap x = lines_of_x(p, a.rowwise.copy_rows), w = lines_of_w(p, p.experts, kBlockN);
  if (!x.valid || !w.valid) return cudaErrorNotSupported;
  const Grid grid{static_cast<unsigned>(c.blocks),  kRowwiseThreads,    L::kBytes, stream,
                  static_cast<unsigned>(c.cluster), Overlap::after_ours};
  return launch(scaled_wgmma<kBy, kType, Output, Scheduler, kBlockN, kBlockM, kStages, kSub>, grid, x.map, w.map, a);
}

template <ScaledBy kBy, Element kType, Element kOutput, int kSub>
cudaError_t launch_output(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream) {
  using Output = std::conditional_t<kOutput == Element::fp16, __half, __nv_bfloat16>;
  cudaError_t error = cudaErrorInvalidValue;
  for_each_scaled_tile([&](auto tile) {
    using T = decltype(tile);
    if constexpr (has_scaled_tile(kBy, kType, kOutput, T::kBlockN, T::kBlockM))
      if (T::is_of(c) && p.experts == 0)
        error = launch_scaled<kBy, kType, Output, TileScheduler, T::kBlockN, T::kBlockM, kSub>(p, c, by_chunks, stream);
    if constexpr (has_expert_tile(kBy, T::kBlockN, T::kBlockM))
      if (T::is_of(c) && p.experts > 0)
        error = launch_scaled<kBy, kType, Output, GroupedScheduler, T::kBlockN, T::kBlockM, kSub>(p, c, nullptr, stream);
  });
  return error;
}

template <ScaledBy kBy, Element kType, int kSub>
cudaError_t launch_scaled(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream) {
  return p.output == Element::bf16 ? launch_output<kBy, kType, Element::bf16, kSub>(p, c, by_chunks, stream)
                                   : launch_output<kBy, kType, Element::fp16, kSub>(p, c, by_chunks, stream);
}

// The parts, each in a file of its own, so that they are compiled side by side.
cudaError_t launch_scaled_tile(const ScaledLinear& p, const WgmmaConfig& c, const float* by_chunks, cudaStream_t stream);
cudaError_t launch_scaled_row(const ScaledLinear& p, const WgmmaConfig& c, cudaStream_t stream);
cudaError_t launch_scaled_int4(const ScaledLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda::wgmma
