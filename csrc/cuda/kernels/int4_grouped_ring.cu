// int4_ring.cuh for experts. A tile is a row, whose weight is read from L2 again where the expert has others, or up to 8 rows of
// one expert, which take a kernel for as many. More are for wgmma.
#include "cuda/kernels/int4_grouped_ring.h"

#include "cuda/kernels/experts.h"
#include "cuda/kernels/experts_few_rows.cuh"
#include "cuda/kernels/int4_of_expert.cuh"
#include "cuda/kernels/int4_ring_choice.h"

namespace aoext::cuda {
namespace {

using int4_ring::Key;
using int4_ring::kKeyNames;
using int4_ring::Params;
using Kernel = void (*)(Params, Int4Linear, int);

// The tile of a block is its place along z. `p` is for one of block_m rows.
template <Element X, Element S, int Sub, int Rows, bool Ringed, int Tiles>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    int4_grouped_ring_kernel(const __grid_constant__ Params p, const __grid_constant__ Int4Linear all, int block_m) {
  using I = int4_ring::Instance<X, S, Sub, Rows, Ringed, Tiles>;
  using T = typename I::Num::type;
  wait_for_last_kernel();
  const int experts = static_cast<int>(all.experts);
  const ExpertRows rows = rows_of_tile(all.ends, experts, static_cast<int>(all.M), block_m, blockIdx.z);
  if (rows.begin == rows.end) return;
  if (rows.expert == experts) {
    clear_rows(all.y, rows, all.N, X);
    return;
  }
  const Int4Linear of_rows = of_expert(all, rows.expert);
  Params own = p;
  own.x = behind(all.x, rows.begin * all.K, all.code);
  if (all.row_scale) own.row_scale = all.row_scale + rows.begin;
  own.weight = of_rows.weight, own.scale = of_rows.scale, own.zero_point = of_rows.zero_point, own.bias = of_rows.bias;
  own.y = static_cast<T*>(all.y) + rows.begin * all.N;
  if (block_m > 1) set_rows(own, rows.end - rows.begin, Tiles);
  int4_ring::run<I>(own);
}

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  int4_ring::for_each_instance<2, 8>([&]<Element X, Element S, int kSub, int kRows, bool kRinged, int kTiles>(const Key& key) {
    f(key, Kernel(int4_grouped_ring_kernel<X, S, kSub, kRows, kRinged, kTiles>));
  });
}

// What a full tile is.
Int4Linear of_tile(const Int4Linear& p, int block_m) {
  Int4Linear one = p;
  one.M = block_m;
  return one;
}

Key key_of(const Int4Linear& p, const GroupedRingConfig& c) { return int4_ring::key_of(of_tile(p, c.block_m), c); }

Kernel kernel_of(const Int4Linear& p, const GroupedRingConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

constexpr int kBlockMs[] = {1, 8};

// Blocks along z.
int64_t row_tiles(const Int4Linear& p, int block_m) { return block_m == 1 ? p.M : most_row_tiles(p.M, p.experts, block_m); }

// A tile may have a single row.
bool lay_out(const Int4Linear& p, const GroupedRingConfig& c, int4_ring::Launch& l) {
  return int4_ring::lay_out(of_tile(p, c.block_m), 1, c, l);
}

}  // namespace

bool KernelOf<GroupedRingConfig>::takes(const Int4Linear& p) {
  constexpr int64_t kMostTiles = 65535;  // along z
  return row_tiles(p, 1) <= kMostTiles && row_tiles(p, 8) <= kMostTiles && p.experts < int64_t{1} << 31 &&
         KernelOf<RingConfig>::takes(of_tile(p, 1));
}

// By the model of int4_ring, of a tile on its share of the GPU.
Choice<GroupedRingConfig> KernelOf<GroupedRingConfig>::choose(const Int4Linear& p, const Device& device) {
  Choice<GroupedRingConfig> best;
  for (const int block_m : kBlockMs) {
    const double tiles = block_m == 1 ? static_cast<double>(p.M) : expected_row_tiles(p.M, p.experts, block_m);
    const auto serves = [&](const RingConfig& c) { return kernel_of(p, {c, block_m}) != nullptr; };
    const Choice<RingConfig> one = choose_of_tiles(tiles, std::min(p.M, row_tiles(p, block_m)), device, [&](const Device& share) {
      return int4_ring::choose(of_tile(p, block_m), 1, share, serves);
    });
    best.consider({one.config, block_m}, one.microseconds);
  }
  return best;
}

bool KernelOf<GroupedRingConfig>::fits(const Int4Linear& p, const GroupedRingConfig& c) {
  int4_ring::Launch l;
  const bool rows = std::find(std::begin(kBlockMs), std::end(kBlockMs), c.block_m) != std::end(kBlockMs);
  return rows && kernel_of(p, c) && lay_out(p, c, l);
}

cudaError_t KernelOf<GroupedRingConfig>::launch(const Int4Linear& p, const GroupedRingConfig& c, void* /*workspace*/,
                                                cudaStream_t stream) {
  const Kernel kernel = kernel_of(p, c);
  int4_ring::Launch l;
  if (!kernel || !lay_out(p, c, l)) return cudaErrorInvalidValue;
  const dim3 blocks(c.cluster, std::min(c.blocks, l.params.tile_groups), static_cast<unsigned>(row_tiles(p, c.block_m)));
  const dim3 threads(32, c.k_splits, c.tiles);
  const Overlap overlap = c.overlaps ? Overlap::after_ours : Overlap::never;
  return cuda::launch(kernel, Grid{blocks, threads, l.shared, stream, static_cast<unsigned>(c.cluster), overlap}, l.params, p,
                      c.block_m);
}

std::string KernelOf<GroupedRingConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<GroupedRingConfig>::instance(const Int4Linear& p, const GroupedRingConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
