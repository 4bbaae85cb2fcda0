// Instances of fp4_decode.cuh, and their launcher.
#include "cuda/kernels/fp4_decode.h"

#include "cuda/kernels/choice.h"
#include "cuda/kernels/fp4_decode.cuh"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/rowwise_decode_choice.h"

namespace aoext::cuda {
namespace fp4_decode {

// What the choice of a cut asks.
int tile_k(const Fp4Linear&) { return kTileK; }
int k_tile_bytes(const Fp4Linear& p) { return stage_bytes(static_cast<int>(p.block_k)); }
int table_bytes(const Fp4Linear&) { return 0; }
int64_t weight_row_bytes(const Fp4Linear& p) { return row_bytes(p); }

}  // namespace fp4_decode

namespace {

using fp4_decode::Fp4Linear;
using Kernel = void (*)(rowwise_decode::Params<Fp4Linear>);

// What tells instances apart.
using Key = std::array<int, 4>;
constexpr std::array<const char*, 4> kKeyNames = {"group", "octets", "depth", "experts"};

// Rings of four stages never were the fastest for one weight (benchmarks/cuts/time_cuts.py).
constexpr int kDenseDepth = 2;

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  using namespace fp4_decode;
  constexpr int kExpertDepth = rowwise_decode::kExpertDepth;
  each<1, 2>([&](auto octets) {
    constexpr int kOctets = decltype(octets)::value;
    f(Key{Exponents::kGroup, kOctets, kDenseDepth, 0}, Kernel(fp4_decode_kernel<Exponents, kOctets, kDenseDepth>));
    f(Key{E4m3::kGroup, kOctets, kDenseDepth, 0}, Kernel(fp4_decode_kernel<E4m3, kOctets, kDenseDepth>));
  });
  f(Key{Exponents::kGroup, 1, kExpertDepth, 1}, Kernel(fp4_decode_of_experts<Exponents, kExpertDepth>));
  f(Key{E4m3::kGroup, 1, kExpertDepth, 1}, Kernel(fp4_decode_of_experts<E4m3, kExpertDepth>));
}

Key key_of(const BlockLinear& p, const RowwiseDecodeConfig& c) {
  return {static_cast<int>(p.block_k), rowwise_decode::rows_of(p) <= 8 ? 1 : 2, c.depth, p.experts > 0};
}

Kernel kernel_of(const BlockLinear& p, const RowwiseDecodeConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

// By rowwise_decode's model, but that clusters reduce in every turn, which counts here: turns have half as many k-tiles. Larger
// clusters and three blocks a multiprocessor never were the fastest (benchmarks/cuts/time_cuts.py).
Choice<Fp4DecodeConfig> choose_of_tile(const BlockLinear& p, const Device& device) {
  constexpr int kAhead = 1024, kMostBlocks = 65535, kFewestWarps = 4;
  const Fp4Linear linear{p};
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const Features features = device.features;
  const bool experts = p.experts > 0;
  const int sm_warps = experts ? rowwise_decode::kExpertThreads / 32 : p.M > 8 ? 16 : 20;  // that have registers
  Choice<Fp4DecodeConfig> best;
  const int depth = experts ? rowwise_decode::kExpertDepth : kDenseDepth;
  Fp4DecodeConfig c{{depth, 1, 1, 1, 1, shared_memory, experts ? 0 : kAhead, features.overlap}};
  for (c.cluster = 1; c.cluster <= (features.clusters ? 2 : 1); ++c.cluster)
    for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
      for (c.k_splits = 1; c.tiles * c.k_splits <= 16; ++c.k_splits)
        for (int resident = 1; resident <= 2 && resident * c.tiles * c.k_splits <= sm_warps; ++resident) {
          if (c.tiles * c.k_splits < kFewestWarps) continue;
          const int64_t groups = ceil_div(p.N, fp4_decode::kTileN * c.tiles);
          const int slots = clusters_at_once(sms, resident, c.cluster);
          if (slots < 1) continue;
          c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
          rowwise_decode::Launch<Fp4Linear> l;
          if (!rowwise_decode::lay_out(linear, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024)
            continue;
          const int at_once = std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms)));
          const double reductions = c.cluster > 1 ? fits_of(device).rowwise_decode.cluster * (l.turns - 1) : 0;
          best.consider(c, rowwise_decode::model_time(linear, c, l, device, at_once) + reductions);
        }
  return best;
}

}  // namespace

bool KernelOf<Fp4DecodeConfig>::takes(const BlockLinear& p) {
  const bool scales = (p.block_k == fp4_decode::Exponents::kGroup && p.block_scale_type == Element::e8m0) ||
                      (p.block_k == fp4_decode::E4m3::kGroup && p.block_scale_type == Element::e4m3);
  return p.type == Element::bf16 && p.output == Element::bf16 && p.weight_type == Element::lut4 && p.block_n == 1 && scales &&
         is_aligned(p.x) && is_aligned(p.weight) && is_aligned(p.block_scale, 8) && rowwise_decode::takes_rows(p) &&
         p.K % 128 == 0 && p.K <= int64_t{1} << 27 && p.N <= int64_t{1} << 30;
}

Choice<Fp4DecodeConfig> KernelOf<Fp4DecodeConfig>::choose(const BlockLinear& p, const Device& device) {
  if (p.experts == 0) return choose_of_tile(p, device);
  return choose_of_tiles(expected_row_tiles(p.M, p.experts, rowwise_decode::kExpertRows),
                         std::min(p.M, rowwise_decode::row_tiles(p)), device,
                         [&](const Device& share) { return choose_of_tile(p, share); });
}

bool KernelOf<Fp4DecodeConfig>::fits(const BlockLinear& p, const Fp4DecodeConfig& c) {
  rowwise_decode::Launch<Fp4Linear> l;
  return kernel_of(p, c) && rowwise_decode::lay_out(Fp4Linear{p}, c, l);
}

cudaError_t KernelOf<Fp4DecodeConfig>::launch(const BlockLinear& p, const Fp4DecodeConfig& c, void* /*workspace*/,
                                              cudaStream_t stream) {
  if (!takes(p)) return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(p, c);
  rowwise_decode::Launch<Fp4Linear> l;
  if (!kernel || !rowwise_decode::lay_out(Fp4Linear{p}, c, l)) return cudaErrorInvalidValue;
  return rowwise_decode::launch(kernel, l, c, stream);
}

std::string KernelOf<Fp4DecodeConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<Fp4DecodeConfig>::instance(const BlockLinear& p, const Fp4DecodeConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
