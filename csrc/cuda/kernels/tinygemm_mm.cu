#include "cuda/kernels/tinygemm_mm.cuh"

#include <algorithm>

#include "cuda/kernels/instances.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using tinygemm::Shape;

constexpr int kMostWarps = 16;        // of a block
constexpr int64_t kFewestChunks = 2;  // of a phase, where fewer warps can help it

// What tells instances apart.
using Key = std::array<int, 3>;
constexpr std::array<const char*, 3> kKeyNames = {"inner_k_tiles", "sub_groups", "block_m"};

using Kernel = void (*)(Shape);

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  each<2, 4, 8>([&](auto inner) {
    each<1, 4>([&](auto sub) {
      each<1, 2>([&](auto octets) {
        constexpr int kInner = decltype(inner)::value, kSub = decltype(sub)::value, kOctets = decltype(octets)::value;
        f(Key{kInner, kSub, 8 * kOctets}, Kernel(tinygemm::mm_kernel<kInner, kSub, kOctets>));
      });
    });
  });
}

int sub_groups(const TinygemmLinear& p) { return p.group_size < kTinygemmChunk ? 4 : 1; }

Key key_of(const TinygemmLinear& p, const TinygemmConfig& c) { return {p.inner_k_tiles, sub_groups(p), c.block_m}; }

Kernel kernel_of(const TinygemmLinear& p, const TinygemmConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

}  // namespace

namespace tinygemm {

Shape shape(const TinygemmLinear& p, const TinygemmConfig& config) {
  Shape s{};
  s.p = p;
  while ((int64_t{1} << s.log2_group) < p.group_size) ++s.log2_group;
  s.chunks = static_cast<int>((p.K + kTinygemmChunk - 1) / kTinygemmChunk);
  s.phase_chunks = config.phase_chunks;
  s.tiles = static_cast<int>((p.N + kRows - 1) / kRows);
  const auto k_tiles = [&](int chunks) { return (chunks + config.warps - 1) / config.warps; };
  s.k_tiles = k_tiles(s.phase_chunks);
  s.last_k_tiles = k_tiles((s.chunks - 1) % s.phase_chunks + 1);
  return s;
}

}  // namespace tinygemm

namespace {

// Bytes of shared memory: for so many chunks of K at a time, and for the sums of a block's tiles where they wait for the next.
int64_t shared_bytes(const TinygemmLinear& p, const TinygemmConfig& c) {
  const int64_t slots = 16 * c.block_m, tiles = ceil_div(p.N, tinygemm::kRows);
  const int64_t warp_bytes = tinygemm::kBarrierBytes + tinygemm::buffers(c.block_m) * c.warps * slots * 4;
  const int64_t chunk_bytes = tinygemm::kChunkBytes * p.M + sub_groups(p) * c.block_m * 4;
  const int64_t pad_bytes = (tinygemm::row_bytes(0) + 127) * p.M;
  const int64_t tile_bytes = c.phase_chunks < ceil_div(p.K, kTinygemmChunk) ? ceil_div(tiles, c.blocks) * slots * 4 : 0;
  return warp_bytes + pad_bytes + tile_bytes + c.phase_chunks * chunk_bytes;
}

// Fewer warps than max_warps are taken where that shares the work better.
TinygemmConfig cut_for(const TinygemmLinear& p, const Device& device, int max_warps) {
  const int64_t max_shared_bytes = device.shared_memory;
  TinygemmConfig config{};
  config.block_m = p.M <= 8 ? 8 : 16;
  const int64_t chunks = (p.K + kTinygemmChunk - 1) / kTinygemmChunk;
  const int64_t tiles = (p.N + tinygemm::kRows - 1) / tinygemm::kRows;
  // As many warps as share the chunks evenly, from half the most on.
  const auto steps = [&](int64_t warps) { return (chunks + warps - 1) / warps; };
  config.warps = static_cast<int>(std::min<int64_t>(max_warps, chunks));
  while (config.warps > 1 && steps(config.warps - 1) == steps(config.warps)) --config.warps;
  const int64_t slots = 16 * config.block_m;
  const int64_t warp_bytes = tinygemm::kBarrierBytes + tinygemm::buffers(config.block_m) * config.warps * slots * 4;
  const int64_t chunk_bytes = tinygemm::kChunkBytes * p.M + sub_groups(p) * config.block_m * 4;
  const int64_t pad_bytes = (tinygemm::row_bytes(0) + 127) * p.M;
  config.blocks = static_cast<int>(std::min<int64_t>(tiles, device.multiprocessors));
  int64_t fits = (max_shared_bytes - warp_bytes - pad_bytes) / chunk_bytes;
  if (fits < chunks) {
    // Sums wait for the next phase: at most a quarter of the memory is theirs, by more blocks where need be.
    const int64_t most = std::max<int64_t>(1, max_shared_bytes / 4 / (slots * 4));
    config.blocks = static_cast<int>(std::max<int64_t>(config.blocks, (tiles + most - 1) / most));
    const int64_t tile_bytes = (tiles + config.blocks - 1) / config.blocks * slots * 4;
    fits = (max_shared_bytes - warp_bytes - pad_bytes - tile_bytes) / chunk_bytes;
    // Little shared memory and many rows: fewer warps leave more of it.
    if (fits < kFewestChunks && max_warps > 1) return cut_for(p, device, max_warps / 2);
    const int64_t phases = (chunks + fits - 1) / fits;
    const int64_t even = (chunks + phases - 1) / phases;
    fits = std::min(fits, (even + config.warps - 1) / config.warps * config.warps);
  }
  config.phase_chunks = static_cast<int>(std::min(fits, chunks));
  config.overlaps = device.features.overlap;
  return config;
}

}  // namespace

Choice<TinygemmConfig> KernelOf<TinygemmConfig>::choose(const TinygemmLinear& p, const Device& device) {
  return {cut_for(p, device, kMostWarps)};
}

bool KernelOf<TinygemmConfig>::fits(const TinygemmLinear& p, const TinygemmConfig& c, const Device& device) {
  const bool rows = (c.block_m == 8 || c.block_m == 16) && p.M <= c.block_m;
  return rows && c.warps >= 1 && c.warps <= kMostWarps && c.blocks >= 1 && c.phase_chunks >= 1 &&
         c.phase_chunks <= ceil_div(p.K, kTinygemmChunk) && shared_bytes(p, c) <= device.shared_memory;
}

cudaError_t KernelOf<TinygemmConfig>::launch(const TinygemmLinear& p, const TinygemmConfig& c, void* /*workspace*/,
                                             cudaStream_t stream) {
  const Shape shape = tinygemm::shape(p, c);
  const Kernel kernel = kernel_of(p, c);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const Grid grid{static_cast<unsigned>(c.blocks),
                  static_cast<unsigned>(c.warps * 32),
                  static_cast<size_t>(shared_bytes(p, c)),
                  stream,
                  1,
                  c.overlaps ? Overlap::after_ours : Overlap::never};
  return cuda::launch(kernel, grid, shape);
}

std::string KernelOf<TinygemmConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<TinygemmConfig>::instance(const TinygemmLinear& p, const TinygemmConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
