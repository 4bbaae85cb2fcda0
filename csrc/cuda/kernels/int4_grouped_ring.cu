// int4_ring.cuh for experts. A token goes to several, so of few rows in all most have an expert of their own, and each row is a
// product of one row: its blocks find its expert, and go on as if there were no other. Where an expert has several rows its
// weight is read as often, from L2 but for the first time; more rows are for wgmma.
#include "cuda/kernels/int4_grouped_ring.h"

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/int4_ring_launch.h"

namespace aoext::cuda {
namespace {

using int4_ring::has_kernel;
using int4_ring::Key;
using int4_ring::key_of;
using int4_ring::kKeyNames;
using int4_ring::kTileK;
using int4_ring::lay_out;
using int4_ring::Params;
using Kernel = void (*)(Params, GroupedInt4Linear);

// The row of a block is its place along z. `p` is for one row.
template <Element X, Element S, int Sub, int Rows, bool Ringed, int Tiles>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    int4_grouped_ring_kernel(const __grid_constant__ Params p, const __grid_constant__ GroupedInt4Linear all) {
  using I = int4_ring::Instance<X, S, Sub, Rows, Ringed, Tiles>;
  using T = typename I::Num::type;
  wait_for_last_kernel();
  const int64_t row = blockIdx.z;
  T* const y = static_cast<T*>(all.y) + row * all.N;
  const int expert = expert_of(all, row);
  if (expert == all.experts) {
    const int64_t block = blockIdx.y * gridDim.x + blockIdx.x, threads = 32 * blockDim.y * blockDim.z;
    const int64_t first = (block * blockDim.z + threadIdx.z) * blockDim.y * 32 + threadIdx.y * 32 + threadIdx.x;
    for (int64_t n = first; n < all.N; n += threads * gridDim.x * gridDim.y) y[n] = T(0.f);
    return;
  }
  const Int4Linear of_row = of_expert(all, expert);
  Params own = p;
  own.x = static_cast<const T*>(all.x) + row * all.K;
  own.weight = of_row.weight, own.scale = of_row.scale, own.zero_point = of_row.zero_point, own.bias = of_row.bias;
  own.y = y;
  int4_ring::run<I>(own);
}

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  each<Element::bf16, Element::fp16>([&](auto x) {
    each<decltype(x)::value, Element::fp32>([&](auto s) {
      each<32, kTileK>([&](auto sub) {
        each<false, true>([&](auto ringed) {
          each<1, 2>([&](auto warp_tiles) {
            constexpr Element X = decltype(x)::value, S = decltype(s)::value;
            constexpr int kSub = decltype(sub)::value, kRows = kSub < kTileK ? 2 : 8, kTiles = decltype(warp_tiles)::value;
            constexpr bool kRinged = decltype(ringed)::value;
            if constexpr (has_kernel(X == S, kSub, kRows, kRinged, kTiles))
              f(Key{int(X), int(S), kSub, kRows, kRinged, kTiles},
                Kernel(int4_grouped_ring_kernel<X, S, kSub, kRows, kRinged, kTiles>));
          });
        });
      });
    });
  });
}

// What a row is.
Int4Linear one_row(const GroupedInt4Linear& p) {
  Int4Linear one = p;
  one.M = 1;
  return one;
}

Kernel kernel_of(const GroupedInt4Linear& p, const RingConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(one_row(p), c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

}  // namespace

bool int4_grouped_ring_takes(const GroupedInt4Linear& p) {
  constexpr int64_t kMostRows = 65535;  // along z
  // What the kernel counts in 32 bits: experts, bytes of scales and of rows of w.
  const bool counts = p.experts < int64_t{1} << 31 && p.N < int64_t{1} << 29 && p.K < int64_t{1} << 25;
  return p.M <= kMostRows && counts && int4_ring_takes(one_row(p));
}

// By the model of int4_ring, of a row on its share of the GPU.
Choice<GroupedRingConfig> choose_int4_grouped_ring(const GroupedInt4Linear& p, const Device& device) {
  Device share = device;
  const auto rows = static_cast<int>(std::min<int64_t>(p.M, device.multiprocessors));
  share.multiprocessors = device.multiprocessors / rows;
  share.bandwidth = device.bandwidth / rows;
  const auto serves = [&](const RingConfig& c) { return kernel_of(p, c) != nullptr; };
  const Choice<RingConfig> best = int4_ring::choose(one_row(p), share, serves);
  const auto turns = static_cast<double>(ceil_div(p.M, rows));
  return {{best.config}, turns * best.microseconds};
}

bool int4_grouped_ring_fits(const GroupedInt4Linear& p, const GroupedRingConfig& c) {
  int4_ring::Launch l;
  return kernel_of(p, c) && lay_out(one_row(p), c, l);
}

cudaError_t launch_int4_grouped_ring(const GroupedInt4Linear& p, const GroupedRingConfig& c, cudaStream_t stream) {
  const Kernel kernel = kernel_of(p, c);
  int4_ring::Launch l;
  if (!kernel || !lay_out(one_row(p), c, l)) return cudaErrorInvalidValue;
  const dim3 blocks(c.cluster, std::min(c.blocks, l.params.tile_groups), static_cast<unsigned>(p.M));
  const dim3 threads(32, c.k_splits, c.tiles);
  const Overlap overlap = c.overlaps ? Overlap::after_ours : Overlap::never;
  return launch(kernel, Grid{blocks, threads, l.shared, stream, static_cast<unsigned>(c.cluster), overlap}, l.params, p);
}

std::string int4_grouped_ring_instances() {
  return instances_text("int4_grouped_ring", kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string int4_grouped_ring_instance(const GroupedInt4Linear& p, const GroupedRingConfig& c) {
  return instance_text("int4_grouped_ring", kKeyNames, key_of(one_row(p), c));
}

}  // namespace aoext::cuda
