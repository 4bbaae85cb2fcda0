// Instances of rowwise_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/rowwise_decode.h"

#include "cuda/kernels/instances.h"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/rowwise_decode_choice.h"

namespace aoext::cuda {
namespace {

using rowwise_decode::lay_out;
using rowwise_decode::RowsOf;
using rowwise_decode::X;
using Kernel = void (*)(rowwise_decode::Params<RowwiseLinear>);
using Launch = rowwise_decode::Launch<RowwiseLinear>;

constexpr int64_t kMostQuantized = 8;  // rows of x

// What tells instances apart.
using Key = std::array<int, 6>;
constexpr std::array<const char*, 6> kKeyNames = {"x", "weight", "quantizes", "octets", "depth", "experts"};

// f(key, kernel) of each: x of the weight's type, which may have to be quantised, where there are up to 8 rows of it, or of 16
// bits.
template <class F>
void for_each_instance(F&& f) {
  each<Element::int8, Element::e4m3, Element::e5m2>([&](auto w) {
    each<1, 2>([&](auto octets) {
      each<2, 4>([&](auto depth) {
        using rowwise_decode::rowwise_decode_kernel, rowwise_decode::rowwise_decode_of_experts;
        constexpr Element W = decltype(w)::value;
        constexpr int kOctets = decltype(octets)::value, kDepth = decltype(depth)::value;
        using T = std::conditional_t<W == Element::int8, int8_t, __half>;
        const auto key = [](Element x, int quantizes, int experts = 0) {
          return Key{int(x), int(W), quantizes, kOctets, kDepth, experts};
        };
        f(key(W, 0), Kernel(rowwise_decode_kernel<T, RowsOf<W>, X::eight, kOctets, kDepth>));
        if constexpr (kOctets == 1) f(key(W, 1), Kernel(rowwise_decode_kernel<T, RowsOf<W>, X::quantized, kOctets, kDepth>));
        f(key(Element::fp16, 0), Kernel(rowwise_decode_kernel<__half, RowsOf<W>, X::sixteen, kOctets, kDepth>));
        f(key(Element::bf16, 0), Kernel(rowwise_decode_kernel<__nv_bfloat16, RowsOf<W>, X::sixteen, kOctets, kDepth>));
        if constexpr (kOctets == 1 && kDepth == rowwise_decode::kExpertDepth) {
          f(key(W, 0, 1), Kernel(rowwise_decode_of_experts<T, RowsOf<W>, X::eight, kDepth>));
          f(key(W, 1, 1), Kernel(rowwise_decode_of_experts<T, RowsOf<W>, X::quantized, kDepth>));
          f(key(Element::fp16, 0, 1), Kernel(rowwise_decode_of_experts<__half, RowsOf<W>, X::sixteen, kDepth>));
          f(key(Element::bf16, 0, 1), Kernel(rowwise_decode_of_experts<__nv_bfloat16, RowsOf<W>, X::sixteen, kDepth>));
        }
      });
    });
  });
}

Key key_of(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  return {
      int(multiplied_type(p)), int(p.weight_type), p.quantizes, rowwise_decode::rows_of(p) <= 8 ? 1 : 2, c.depth, p.experts > 0};
}

Kernel kernel_of(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

}  // namespace

bool KernelOf<RowwiseDecodeConfig>::takes(const RowwiseLinear& p) {
  const bool types =
      is_8bit(p.weight_type) && (p.quantizes ? !is_8bit(p.type) && rowwise_decode::rows_of(p) <= kMostQuantized
                                             : p.type == p.weight_type || p.type == Element::bf16 || p.type == Element::fp16);
  return types && is_aligned(p.x) && is_aligned(p.weight) && rowwise_decode::takes_rows(p) && p.K % 16 == 0 &&
         p.K <= int64_t{1} << 27 && p.N <= int64_t{1} << 30;
}

Choice<RowwiseDecodeConfig> KernelOf<RowwiseDecodeConfig>::choose(const RowwiseLinear& p, const Device& device) {
  return rowwise_decode::choose_cut(p, device, 8);
}

bool KernelOf<RowwiseDecodeConfig>::fits(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  Launch l;
  return kernel_of(p, c) && lay_out(p, c, l);
}

cudaError_t KernelOf<RowwiseDecodeConfig>::launch(const RowwiseLinear& p, const RowwiseDecodeConfig& c, void* /*workspace*/,
                                                  cudaStream_t stream) {
  if (!takes(p)) return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(p, c);
  Launch l;
  if (!kernel || !lay_out(p, c, l)) return cudaErrorInvalidValue;
  return rowwise_decode::launch(kernel, l, c, stream);
}

std::string KernelOf<RowwiseDecodeConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<RowwiseDecodeConfig>::instance(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda
