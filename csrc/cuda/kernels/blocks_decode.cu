// Instances of rowwise_decode.cuh for weights with a scale a block, and their launcher.
#include "cuda/kernels/blocks_decode.h"

#include "cuda/kernels/blocks_decode.cuh"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/rowwise_decode_choice.h"

namespace aoext::cuda {
namespace rowwise_decode {
namespace {

bool is_table(const BlockLinear& p) { return p.weight_type == Element::lut4; }

// The k that have one scale at least, as instances know it.
int granule(const BlockLinear& p) {
  const int half = is_table(p) ? 128 : 64;
  if (p.block_k % half == 0 || p.block_k >= p.K) return half;
  return is_table(p) && p.block_k % 32 == 0 ? 32 : 16;
}

}  // namespace

int tile_k(const BlockParams& p) { return is_table(p) ? 256 : 128; }
int k_tile_bytes(const BlockParams& p) { return kWeightBytes + p.words * (kTileN * 4); }
int table_bytes(const BlockParams& p) { return is_table(p) ? PairTable::kBytes : 0; }
int64_t weight_row_bytes(const BlockParams& p) { return row_bytes(p); }

}  // namespace rowwise_decode

namespace {

using rowwise_decode::BlockParams;
using rowwise_decode::BlocksOf;
using rowwise_decode::tile_k;
using rowwise_decode::X;
using Kernel = void (*)(rowwise_decode::Params<BlockParams>);

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"type", "weight", "granule", "octets", "depth", "experts"};

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  each<Element::int8, Element::e4m3, Element::e5m2, Element::lut4>([&](auto w) {
    each<16, 32, 64, 128>([&](auto granule) {
      each<1, 2>([&](auto octets) {
        each<2, 4>([&](auto depth) {
          using rowwise_decode::rowwise_decode_kernel, rowwise_decode::rowwise_decode_of_experts;
          constexpr Element W = decltype(w)::value;
          constexpr bool kTable = W == Element::lut4;
          constexpr int kGranule = decltype(granule)::value;
          [[maybe_unused]] constexpr int kOctets = decltype(octets)::value, kDepth = decltype(depth)::value;
          if constexpr (kTable ? kGranule != 64 : kGranule == 16 || kGranule == 64) {
            using Loader = BlocksOf<W, kGranule>;
            const auto key = [](Element x, int experts = 0) { return Key{int(x), int(W), kGranule, kOctets, kDepth, experts}; };
            f(key(Element::bf16), Kernel(rowwise_decode_kernel<__nv_bfloat16, Loader, X::sixteen, kOctets, kDepth>));
            f(key(Element::fp16), Kernel(rowwise_decode_kernel<__half, Loader, X::sixteen, kOctets, kDepth>));
            if constexpr (kOctets == 1 && kDepth == rowwise_decode::kExpertDepth) {
              f(key(Element::bf16, 1), Kernel(rowwise_decode_of_experts<__nv_bfloat16, Loader, X::sixteen, kDepth>));
              f(key(Element::fp16, 1), Kernel(rowwise_decode_of_experts<__half, Loader, X::sixteen, kDepth>));
            }
          }
        });
      });
    });
  });
}

Key key_of(const BlockLinear& p, const RowwiseDecodeConfig& c) {
  return {int(p.type), int(p.weight_type), rowwise_decode::granule(p), rowwise_decode::rows_of(p) <= 8 ? 1 : 2,
          c.depth,     p.experts > 0};
}

Kernel kernel_of(const BlockLinear& p, const RowwiseDecodeConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

// Whether the scales begin at a multiple of four bytes, those of each expert, too.
bool starts_word(const BlockLinear& p, int64_t bytes) {
  return is_aligned(p.block_scale, 4) && (p.experts == 0 || ceil_div(p.N, p.block_n) * scale_columns(p) * bytes % 4 == 0);
}

// Words that hold an output channel's scales of a k-tile, wherever it begins.
int scale_words(const BlockLinear& p, int64_t tile_k, int64_t bytes) {
  if (p.block_k >= p.K || p.block_k % tile_k == 0) return 1;
  const bool whole = tile_k % p.block_k == 0, even = starts_word(p, bytes) && scale_columns(p) * bytes % 4 == 0;
  const int64_t touched = (whole ? tile_k / p.block_k : (tile_k - 16) / p.block_k + 2) * bytes;
  if (even && whole && (touched % 4 == 0 || 4 % touched == 0)) return static_cast<int>(ceil_div(touched, 4));
  return static_cast<int>(ceil_div(touched, 4) + (bytes < 4));
}

BlockParams params_of(const BlockLinear& p) {
  BlockParams w{p};
  w.scale_bytes = static_cast<uint32_t>(bytes_of(p.block_scale_type));
  w.scale_row_bytes = static_cast<uint32_t>(scale_columns(p) * w.scale_bytes);
  const int64_t all = ceil_div(p.N, p.block_n) * scale_columns(p) * w.scale_bytes;
  w.scales_end = static_cast<uint32_t>(all + static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.block_scale) & 3));
  const int64_t sixteens = p.block_k / 16;
  w.block_magic = p.block_k >= p.K ? 0 : static_cast<uint32_t>(((int64_t{1} << 31) + sixteens - 1) / sixteens);
  w.last_k = static_cast<uint32_t>((p.K - 1) / 16 * 16);
  w.words = scale_words(p, tile_k(w), w.scale_bytes);
  w.relative = relative_scales(p);
  const int64_t tile = tile_k(w), block = std::min(p.block_k, tile);
  const bool whole = p.block_k <= tile || p.block_k % tile == 0 || p.block_k >= p.K;
  w.regular = whole && p.K % tile == 0 && (block & (block - 1)) == 0 && tile / block * w.scale_bytes % 4 == 0 &&
              w.scale_row_bytes % 4 == 0 && starts_word(p, w.scale_bytes);
  while (w.regular && int64_t{1} << w.block_log2 < block) ++w.block_log2;
  const bool exponents = p.block_scale_type == Element::e8m0;
  w.shifts = exponents || p.block_scale_type == Element::fp32 || p.block_scale_type == Element::bf16;
  w.mask = exponents ? 0xff : w.scale_bytes == 4 ? ~0u : 0xffff;
  w.shift = exponents ? 23 : w.scale_bytes == 4 ? 0 : 16;
  w.subnormal = exponents ? 0x00400000 : 0;
  return w;
}

}  // namespace

bool KernelOf<BlocksDecodeConfig>::takes(const BlockLinear& p) {
  const bool blocks = p.block_k >= p.K || (p.block_k % 16 == 0 && p.K / 16 * (p.block_k / 16) < int64_t{1} << 31);
  const int64_t scales = ceil_div(p.N, p.block_n) * scale_columns(p) * 4;
  return (p.type == Element::bf16 || p.type == Element::fp16) && blocks && is_aligned(p.x) && is_aligned(p.weight) &&
         rowwise_decode::takes_rows(p) && row_bytes(p) % 16 == 0 && p.K <= int64_t{1} << 27 && p.N <= int64_t{1} << 30 &&
         scales < int64_t{1} << 31;
}

bool blocks_decode_is_exact(const BlockLinear& p) { return !rowwise_decode::is_table(p) && rowwise_decode::granule(p) == 64; }

Choice<BlocksDecodeConfig> KernelOf<BlocksDecodeConfig>::choose(const BlockLinear& p, const Device& device) {
  constexpr int kMostCluster = 2;  // larger ones never were the fastest
  return rowwise_decode::choose_cut(params_of(p), device, kMostCluster).as<BlocksDecodeConfig>();
}

bool KernelOf<BlocksDecodeConfig>::fits(const BlockLinear& p, const BlocksDecodeConfig& c) {
  rowwise_decode::Launch<BlockParams> l;
  return kernel_of(p, c) && rowwise_decode::lay_out(params_of(p), c, l);
}

cudaError_t KernelOf<BlocksDecodeConfig>::launch(const BlockLinear& p, const BlocksDecodeConfig& c, void* /*workspace*/,
                                                 cudaStream_t stream) {
  if (!takes(p)) return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(p, c);
  rowwise_decode::Launch<BlockParams> l;
  if (!kernel || !rowwise_decode::lay_out(params_of(p), c, l)) return cudaErrorInvalidValue;
  return rowwise_decode::launch(kernel, l, c, stream);
}

std::string KernelOf<BlocksDecodeConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<BlocksDecodeConfig>::instance(const BlockLinear& p, const BlocksDecodeConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
