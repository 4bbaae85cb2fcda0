// The choice among the tiles of scaled_wgmma.cuh and scaled_int4_wgmma.cuh, and their launcher.
#include "cuda/kernels/scaled_wgmma.h"

#include "cuda/kernels/instances.h"
#include "cuda/kernels/sm90a/scaled_wgmma_launch.h"

namespace aoext::cuda {
namespace wgmma {
namespace {

constexpr int kTransposeThreads = 256;

// Transposes scales of x to [chunk][row], with zeros behind the last row: copies of 16 bytes read them.
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_scales(const float* scales, float* to, int64_t M, int64_t groups, int64_t pitch) {
  start_next_kernel();
  wait_for_last_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTransposeThreads + threadIdx.x, group = i / pitch, m = i - group * pitch;
  if (group < groups) to[i] = m < M ? scales[m * groups + group] : 0;
}

cudaError_t launch_transpose(const ScaledLinear& p, float* to, cudaStream_t stream) {
  const int64_t pitch = chunk_pitch(p.M), blocks = ceil_div(pitch * x_groups(p), kTransposeThreads);
  if (blocks > (int64_t{1} << 31) - 1) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kTransposeThreads), 0, stream, 1, Overlap::after_ours};
  return launch(transpose_scales, grid, p.x_scale, to, p.M, x_groups(p), pitch);
}

// Whether there is such a tile, and its output channels share scales as the kernel wants.
bool is_tile_of(const ScaledLinear& p, int block_n, int block_m) {
  const ScaledBy by = scaled_kind(p).by;
  if (by == ScaledBy::tile && p.block_n % block_n != 0 && p.block_n < p.N) return false;
  bool found = false;
  for_each_scaled_tile([&](auto tile) {
    const bool has =
        p.experts > 0 ? has_expert_tile(by, block_n, block_m) : has_scaled_tile(by, p.type, p.output, block_n, block_m);
    found = found || (tile.kBlockN == block_n && tile.kBlockM == block_m && has);
  });
  return found;
}

// What tells instances apart; `by` counts ScaledBy.
using Key = std::array<int, 7>;
constexpr std::array<const char*, 7> kKeyNames = {"by", "sub", "type", "output", "block_n", "block_m", "experts"};

// f(key) of each.
template <class F>
void for_each_instance(F&& f) {
  for (const ScaledKind kind :
       {ScaledKind{ScaledBy::tile, 1}, {ScaledBy::row, 4}, {ScaledBy::group, 1}, {ScaledBy::group, 2}, {ScaledBy::group, 4}})
    for (const Element type : {Element::int8, Element::e4m3})
      for (const Element output : {Element::bf16, Element::fp16})
        for_each_scaled_tile([&](auto tile) {
          const auto add = [&](int experts) {
            f(Key{int(kind.by), kind.sub, int(type), int(output), tile.kBlockN, tile.kBlockM, experts});
          };
          if (has_scaled_tile(kind.by, type, output, tile.kBlockN, tile.kBlockM) &&
              (kind.by != ScaledBy::group || kind.sub >= least_sub(type, output)))
            add(0);
          if (has_expert_tile(kind.by, tile.kBlockN, tile.kBlockM)) add(1);
        });
}

// Whether groups are chunks of k, some of them or all.
bool are_chunks(int64_t group, int64_t K, int chunk) { return group % chunk == 0 || group >= K; }

}  // namespace

ScaledKind scaled_kind(const ScaledLinear& p) {
  if (is_int4(p)) {
    const int sub = are_chunks(p.w_group, p.K, kLine) ? 1 : are_chunks(p.w_group, p.K, kLine / 2) ? 2 : 4;
    return {ScaledBy::group, std::max(sub, least_sub(p.type, p.output))};
  }
  const bool whole = are_chunks(p.w_group, p.K, kLine) && are_chunks(p.x_group, p.K, kLine);
  return whole && (p.block_n % 64 == 0 || p.block_n >= p.N) ? ScaledKind{ScaledBy::tile, 1} : ScaledKind{ScaledBy::row, 4};
}

}  // namespace wgmma

using namespace wgmma;

ChunkSums scaled_sums(const ScaledLinear& p) {
  const int chunk = kLine / scaled_kind(p).sub;
  return {nullptr, chunk, ceil_div(p.K, kSumChunks * chunk)};
}

bool KernelOf<ScaledWgmmaConfig>::takes(const ScaledLinear& p) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 256;  // tiles end below 2^31
  constexpr int kLeast = 32;
  const ScaledKind kind = scaled_kind(p);
  const bool half = p.output == Element::bf16 || p.output == Element::fp16;
  const bool chunks = are_chunks(p.w_group, p.K, kLeast) && are_chunks(p.x_group, p.K, kLeast);
  bool scales = true;
  if (kind.by == ScaledBy::group)
    scales = p.N % 8 == 0 && p.K % 32 == 0 && is_aligned(p.scale) && is_aligned(p.zero) &&
             (p.scale_type == Element::bf16 || p.scale_type == Element::fp16 || p.scale_type == Element::fp32);
  else if (kind.by == ScaledBy::row)
    scales = p.scale_type == Element::fp32 ||
             (p.scale_type == Element::e8m0 && p.w_group == kLeast && p.K % kLine == 0 && is_aligned(p.scale, 4));
  return (p.type == Element::e4m3 || p.type == Element::int8) && half && chunks && scales && p.K % 16 == 0 && is_aligned(p.x) &&
         is_aligned(p.weight) && is_aligned(p.y) && std::max({p.M, p.N, p.K}) <= kMost &&
         (p.experts == 0 || (kind.by != ScaledBy::group && takes_experts(p.M, p.N, p.experts)));
}

Choice<ScaledWgmmaConfig> KernelOf<ScaledWgmmaConfig>::choose(const ScaledLinear& p, const Device& device) {
  const ScaledKind kind = scaled_kind(p);
  const TileProblem problem{p.M, p.N, p.K, p.type == Element::int8, is_int4(p) ? kLine / 2 : kLine};
  const auto has = [&](const auto& tile, int rows) { return tile.height == rows && is_tile_of(p, rows, tile.block_m); };
  const auto shares = [&](const auto& tile) { return !is_x_left(kind.by, tile.block_m); };
  if (p.experts > 0)
    return choose_expert_tiles<ScaledWgmmaConfig>(problem, p.experts, device, fits_of(device).rowwise_wgmma.tiles,
                                                  [&](int block_n, int block_m) { return is_tile_of(p, block_n, block_m); });
  if (is_int4(p)) return choose_tiles(problem, device, fits_of(device).scaled_int4_tiles, has, shares).as<ScaledWgmmaConfig>();
  auto best = choose_tiles(problem, device, fits_of(device).rowwise_wgmma.tiles, has, shares);
  // Many rows of x, and tiles of BLOCK_N = 64 only: what was not measured.
  if (best.config.block_m == 0) {
    constexpr int kLow = 64;
    const int64_t tiles = ceil_div(p.N, kLow) * ceil_div(p.M, kPairN);
    best.config = {kPairN, 1, 0, static_cast<int>(even_blocks(tiles, 1, device.multiprocessors)), kLow, 0};
  }
  best.config.x_is_left = is_x_left(kind.by, best.config.block_m);
  return best.as<ScaledWgmmaConfig>();
}

bool KernelOf<ScaledWgmmaConfig>::fits(const ScaledLinear& p, const ScaledWgmmaConfig& c) {
  const bool x_is_left = p.experts == 0 && is_x_left(scaled_kind(p).by, c.block_m);
  if (!is_tile_of(p, c.block_n, c.block_m) || c.x_is_left != x_is_left) return false;
  if (c.stream_k_blocks != 0 || c.cluster < 1 || c.cluster > (x_is_left ? 1 : 2) || c.blocks < 1) return false;
  if (p.experts > 0) return c.cluster == 1;
  return schedule_fits(schedule_of(p.M, p.N, p.K, c), c.blocks);
}

int64_t scaled_wgmma_pitch(const ScaledLinear& p, const WgmmaConfig& c) {
  return p.experts == 0 && is_x_left(scaled_kind(p).by, c.block_m) ? chunk_pitch(p.M) : 0;
}

size_t KernelOf<ScaledWgmmaConfig>::workspace(const ScaledLinear& p, const ScaledWgmmaConfig& c) {
  const ScaledKind kind = scaled_kind(p);
  if (kind.by == ScaledBy::group) return p.sums.sums == nullptr ? p.M * scaled_sums(p).lines * kSumLine * kSumBytes : 0;
  const int64_t chunks = p.x_scale_pitch > 0 ? 0 : x_groups(p);  // that are still to be laid out
  return static_cast<size_t>(scaled_wgmma_pitch(p, c) * chunks) * sizeof(float);
}

cudaError_t KernelOf<ScaledWgmmaConfig>::launch(const ScaledLinear& p, const ScaledWgmmaConfig& c, void* workspace,
                                                cudaStream_t stream) {
  if (!fits(p, c)) return cudaErrorInvalidValue;
  const ScaledKind kind = scaled_kind(p);
  if (kind.by == ScaledBy::row) return launch_scaled_row(p, c, stream);
  if (kind.by == ScaledBy::group) return launch_scaled_int4(p, c, workspace, stream);
  if (p.x_scale_pitch == scaled_wgmma_pitch(p, c)) return launch_scaled_tile(p, c, p.x_scale, stream);
  if (p.x_scale_pitch > 0) return cudaErrorInvalidValue;
  auto* const by_chunks = static_cast<float*>(workspace);
  const cudaError_t error = launch_transpose(p, by_chunks, stream);
  return error != cudaSuccess ? error : launch_scaled_tile(p, c, by_chunks, stream);
}

std::string KernelOf<ScaledWgmmaConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<ScaledWgmmaConfig>::instance(const ScaledLinear& p, const ScaledWgmmaConfig& c) {
  const ScaledKind kind = scaled_kind(p);
  return instance_text(kName, kKeyNames,
                       Key{int(kind.by), kind.sub, int(p.type), int(p.output), c.block_n, c.block_m, p.experts > 0});
}

}  // namespace aoext::cuda
