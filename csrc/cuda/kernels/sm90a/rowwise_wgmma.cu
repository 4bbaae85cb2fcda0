#include "cuda/kernels/rowwise_wgmma.h"

#include <algorithm>

#include "cuda/fits.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/rowwise_wgmma.cuh"
#include "cuda/kernels/sm90a/rowwise_wgmma_choice.h"
#include "cuda/kernels/sm90a/rowwise_wgmma_launch.h"

namespace aoext::cuda {
namespace {

// What a multiprocessor has, less what one block costs.
template <class Scheduler>
constexpr int kSharedMemory = (227 << 10) - int(sizeof(WorkOf<Scheduler>));

// BLOCK_N of the kernel that multiplies tiles of so many output channels, the least that holds them; 0 where none does.
constexpr int height(int tile_n, bool x_left) {
  for (const int most : {64, 80, 96, 128, 160, 192})
    if (tile_n <= most && wgmma::is_x_left(most) == x_left) return most;
  return 0;
}

// As many stages as fit.
template <class Output, class Scheduler, int kBlockN, int kBlockM>
constexpr int stages() {
  using Empty = wgmma::RowwiseLayout<Output, kBlockN, kBlockM, 0>;
  return (kSharedMemory<Scheduler> - Empty::kBytes) / (Empty::kStage + 16) / Empty::kTurns * Empty::kTurns;
}

template <Element kType, class Output, class Scheduler, int kBlockN, int kBlockM>
cudaError_t launch(const RowwiseLinear& p, const WgmmaConfig& config, cudaStream_t stream) {
  constexpr int kStages = stages<Output, Scheduler, kBlockN, kBlockM>();
  using L = wgmma::RowwiseLayout<Output, kBlockN, kBlockM, kStages>;
  const auto kernel = wgmma::rowwise_wgmma<kType, Output, kBlockN, kBlockM, kStages, Scheduler>;
  const auto a = wgmma::rowwise_params<Scheduler>(p, config);
  const TensorMap x = wgmma::lines_of_x(p, a.copy_rows), w = wgmma::lines_of_w(p, p.experts, config.block_n);
  if (!x.valid || !w.valid) return cudaErrorNotSupported;

  const Grid grid{static_cast<unsigned>(config.blocks),  wgmma::kRowwiseThreads, L::kBytes, stream,
                  static_cast<unsigned>(config.cluster), Overlap::after_ours};
  return launch(kernel, grid, x.map, w.map, a);
}

// Tiles of 256 rows of x are not for float8 to fp16, whose sums the engine keeps for 64 k alone.
constexpr bool has_tile(Element type, Element output, int block_n, int block_m) {
  return block_m < 256 || (block_n == wgmma::kPairN && (type == Element::int8 || output == Element::bf16));
}

// Tiles that there are kernels for: rows of w, or fewer, by rows of x.
template <int block_n, int block_m>
struct Tile {
  static constexpr int kBlockN = block_n, kBlockM = block_m;
  static bool is_of(const WgmmaConfig& c) { return height(c.block_n, c.x_is_left) == kBlockN && c.block_m == kBlockM; }
};

// f(Tile{}) for each of them.
template <class F>
void for_each_tile(F&& f) {
  const auto call = [&](auto... tiles) { (f(tiles), ...); };  // Tile<block_n, block_m>
  call(Tile<64, 32>(), Tile<64, 64>(), Tile<64, 128>(), Tile<80, 128>(), Tile<96, 128>(), Tile<160, 128>(), Tile<192, 128>(),
       Tile<128, 32>(), Tile<128, 64>(), Tile<128, 128>(), Tile<128, 256>());
}

// Those for experts.
constexpr bool has_expert_tile(Element type, Element output, int block_n, int block_m) {
  const bool low = block_n == 64 && block_m == 32, high = block_n == wgmma::kPairN && block_m >= 64;
  return (low || high) && has_tile(type, output, block_n, block_m);
}

template <Element kType, Element kOutput>
cudaError_t launch_tile(const RowwiseLinear& p, const WgmmaConfig& c, cudaStream_t stream) {
  using Half = std::conditional_t<kOutput == Element::fp16, __half, __nv_bfloat16>;
  using Output = std::conditional_t<kOutput == Element::fp32, float, Half>;
  cudaError_t error = cudaErrorInvalidValue;
  for_each_tile([&](auto tile) {
    using T = decltype(tile);
    if constexpr (has_tile(kType, kOutput, T::kBlockN, T::kBlockM))
      if (T::is_of(c) && p.experts == 0) error = launch<kType, Output, TileScheduler, T::kBlockN, T::kBlockM>(p, c, stream);
    if constexpr (has_expert_tile(kType, kOutput, T::kBlockN, T::kBlockM))
      if (T::is_of(c) && p.experts > 0) error = launch<kType, Output, GroupedScheduler, T::kBlockN, T::kBlockM>(p, c, stream);
  });
  return error;
}

template <Element kType>
cudaError_t launch_output(const RowwiseLinear& p, const WgmmaConfig& c, cudaStream_t stream) {
  if (p.output == Element::bf16) return launch_tile<kType, Element::bf16>(p, c, stream);
  if (p.output == Element::fp16) return launch_tile<kType, Element::fp16>(p, c, stream);
  if constexpr (kType == Element::int8)  // fp32, or int32 in its place
    return launch_tile<kType, Element::fp32>(p, c, stream);
  return cudaErrorInvalidValue;
}

// What tells instances apart.
using Key = std::array<int, 5>;
constexpr std::array<const char*, 5> kKeyNames = {"type", "output", "height", "block_m", "experts"};

// f(key) of each. A float32 and an int32 result have one, of int8 alone.
template <class F>
void for_each_instance(F&& f) {
  for (const Element type : {Element::int8, Element::e4m3, Element::e5m2})
    for (const Element output : {Element::bf16, Element::fp16, Element::fp32})
      if (output != Element::fp32 || type == Element::int8)
        for_each_tile([&](auto tile) {
          const auto add = [&](int experts) { f(Key{int(type), int(output), tile.kBlockN, tile.kBlockM, experts}); };
          if (has_tile(type, output, tile.kBlockN, tile.kBlockM)) add(0);
          if (has_expert_tile(type, output, tile.kBlockN, tile.kBlockM)) add(1);
        });
}

Key key_of(const RowwiseLinear& p, const WgmmaConfig& c) {
  const Element output = p.output == Element::int32 ? Element::fp32 : p.output;
  return {int(p.type), int(output), height(c.block_n, c.x_is_left), c.block_m, p.experts > 0};
}

}  // namespace

Choice<RowwiseWgmmaConfig> KernelOf<RowwiseWgmmaConfig>::choose(const RowwiseLinear& p, const Device& device) {
  const wgmma::TileProblem problem{p.M, p.N, p.K, p.type == Element::int8, wgmma::kLine};
  const auto& known = fits_of(device).rowwise_wgmma.tiles;
  if (p.experts > 0)
    return wgmma::choose_expert_tiles<RowwiseWgmmaConfig>(problem, p.experts, device, known, [&](int block_n, int block_m) {
      return has_expert_tile(p.type, p.output, block_n, block_m);
    });
  return wgmma::choose_tiles(
             problem, device, known, [&](const auto& tile, int) { return has_tile(p.type, p.output, tile.height, tile.block_m); },
             [](const auto& tile) { return !wgmma::is_x_left(tile.height); })
      .as<RowwiseWgmmaConfig>();
}

bool KernelOf<RowwiseWgmmaConfig>::takes(const RowwiseLinear& p) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 256;  // tiles end below 2^31
  const bool half = p.output == Element::bf16 || p.output == Element::fp16;
  const bool word = p.output == Element::fp32 || p.output == Element::int32;
  return is_8bit(p.type) && p.type == p.weight_type && (half || (word && p.type == Element::int8)) && p.K % 16 == 0 &&
         is_aligned(p.x) && is_aligned(p.weight) && is_aligned(p.y) && std::max({p.M, p.N, p.K}) <= kMost &&
         (p.experts == 0 || wgmma::takes_experts(p.M, p.N, p.experts));
}

bool KernelOf<RowwiseWgmmaConfig>::fits(const RowwiseLinear& p, const RowwiseWgmmaConfig& c) {
  if (p.experts > 0)
    return !c.x_is_left && has_expert_tile(p.type, p.output, c.block_n, c.block_m) && c.stream_k_blocks == 0 && c.cluster == 1 &&
           c.blocks > 0;
  bool tile = false;
  for_each_tile([&](auto t) { tile = tile || (t.is_of(c) && has_tile(p.type, p.output, t.kBlockN, t.kBlockM)); });
  if (!tile || c.block_n < 16 || c.block_n % 16 != 0 || c.stream_k_blocks != 0 || c.cluster < 1 || c.cluster > 2 || c.blocks < 1)
    return false;
  const TileScheduler s = wgmma::schedule_of(p.M, p.N, p.K, c);
  return schedule_fits(s, c.blocks) && !(c.x_is_left && s.whole_tiles < s.tiles);
}

cudaError_t KernelOf<RowwiseWgmmaConfig>::launch(const RowwiseLinear& p, const RowwiseWgmmaConfig& c, void* /*workspace*/,
                                                 cudaStream_t stream) {
  if (!fits(p, c)) return cudaErrorInvalidValue;
  switch (p.weight_type) {
    case Element::int8: return launch_output<Element::int8>(p, c, stream);
    case Element::e4m3: return launch_output<Element::e4m3>(p, c, stream);
    case Element::e5m2: return launch_output<Element::e5m2>(p, c, stream);
    default: return cudaErrorInvalidValue;
  }
}

std::string KernelOf<RowwiseWgmmaConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<RowwiseWgmmaConfig>::instance(const RowwiseLinear& p, const RowwiseWgmmaConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
