// y = row_scale · (sum x · w) + bias with w in blocks of bytes, for what faster kernels do not take: groups of any length,
// any alignment, x of any type. All arithmetic is float32 fma; the loop is that of product_any.cuh for few rows, which reads w
// again for each eight of them. Bytes are read one by one.
#include "cuda/kernels/packed_any.h"

#include "cuda/kernels/experts_any.cuh"
#include "cuda/kernels/packed.cuh"

namespace aoext::cuda {
namespace {

using product_any::kRowsThreads;

template <Element W>
__device__ __forceinline__ float eight_bits(const void* p, int64_t i) {
  return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<W>(static_cast<const uint8_t*>(p)[i], 0)));
}

template <Code kCode>
struct Operands {
  using Value = float;
  using Sum = float;
  using U = packed::Unit<kCode>;
  static constexpr Layout kLayout = U::kLayout;
  static constexpr int kRun = 2, kBlockM = 8, kBlockN = 4;
  using RawW = uint32_t;  // a byte for each code

  const PackedLinear& p;
  int64_t M, N;
  uint32_t length;

  __device__ __forceinline__ explicit Operands(const PackedLinear& p)
      : p(p), M(p.M), N(p.N), length(static_cast<uint32_t>(p.K)) {}

  __device__ __forceinline__ void xs(int64_t m, uint32_t k, float (&v)[kRun]) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int64_t i = m * p.K + k + j;
      v[j] = p.type == Element::int8   ? eight_bits<Element::int8>(p.x, i)
             : p.type == Element::e4m3 ? eight_bits<Element::e4m3>(p.x, i)
                                       : load_float(p.x, i, p.type);
      if (p.x_scale) {
        const auto group = static_cast<uint32_t>(p.x_group);
        v[j] *= p.x_scale[m * ((length + group - 1) / group) + (k + j) / group];
      }
    }
  }
  __device__ __forceinline__ const uint8_t* block(int64_t n, uint32_t k) const {
    return p.weight + n * p.row_bytes + int64_t{k / kLayout.values} * kLayout.bytes;
  }
  __device__ __forceinline__ RawW raw_w(int64_t n, uint32_t k) const {
    constexpr Integer kCodes = layout_of(kCode).code;
    RawW raw = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) raw |= (kCodes.get(block(n, k), k % kLayout.values + j) & 0xff) << 8 * j;
    return raw;
  }
  // A number of a block's group.
  static __device__ __forceinline__ float number(const GroupNumber& number, const uint8_t* block, int group) {
    if (number.at < 0) return 0;
    float v = __half2float(__ushort_as_half(static_cast<uint16_t>(block[number.at] | block[number.at + 1] << 8)));
    if (number.has_factor()) v *= static_cast<float>(number.factor.get(block, group));
    return number.is_taken_off ? -v : v;
  }
  __device__ __forceinline__ packed::Affine affine(int64_t n, uint32_t k) const {
    if constexpr (U::kBeside) {
      const int64_t i = k / static_cast<uint32_t>(p.group_size) * p.N + n;
      return {load_float(p.scale, i, p.scale_type), load_float(p.zero, i, p.scale_type)};
    } else {
      constexpr GroupNumber kScale = layout_of(kCode).scale, kZero = layout_of(kCode).zero_point;
      const int group = static_cast<int>(k % kLayout.values) / kLayout.group;
      return {number(kScale, block(n, k), group), number(kZero, block(n, k), group)};
    }
  }
  static __device__ __forceinline__ float value(uint8_t code) {
    if constexpr (kLayout.looks_up) return static_cast<float>(static_cast<int8_t>(packed::look_up(code)));
    constexpr bool kSigned = kLayout.code.middle > 0;
    return kSigned ? static_cast<float>(static_cast<int8_t>(code)) : static_cast<float>(code);
  }
  __device__ __forceinline__ void ws(const RawW (&raw)[kBlockN], int64_t n, uint32_t k, float (&w)[kBlockN][kRun]) const {
#pragma unroll
    for (int c = 0; c < kBlockN; ++c)
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const packed::Affine a = affine(min(n + c, N - 1), k + j);
        w[c][j] = fmaf(value(raw[c] >> 8 * j & 0xff), a.scale, a.zero);
      }
  }
  static __device__ __forceinline__ float add(float sum, float x, float w) { return fmaf(x, w, sum); }
  __device__ __forceinline__ void store(int64_t m, int64_t n, float sum) const {
    if constexpr (!U::kBeside) sum *= *static_cast<const float*>(p.scale);
    if (p.row_scale) sum *= p.row_scale[m];
    if (p.bias) sum += load_float(p.bias, n, p.bias_type);
    packed::store(p, m * p.N + n, sum);
  }
};

template <Code kCode>
__global__ void __launch_bounds__(kRowsThreads) packed_any(const __grid_constant__ PackedLinear p) {
  product_any::compute_rows(Operands<kCode>(p));
}

template <Code kCode>
__global__ void __launch_bounds__(kRowsThreads, 2) packed_any_of_experts(const __grid_constant__ PackedLinear p) {
  product_any::compute_rows_of_experts<Operands<kCode>>(p, p.output);
}

template <Code kCode>
cudaError_t launch_code(const PackedLinear& p, cudaStream_t stream) {
  return product_any::launch(p.experts > 0 ? packed_any_of_experts<kCode> : packed_any<kCode>,
                             product_any::rows_blocks<Operands<kCode>>(p.M, p.N), kRowsThreads, p, stream);
}

}  // namespace

cudaError_t KernelOf<PackedAny>::launch(const PackedLinear& p, const PackedAny&, void* /*workspace*/, cudaStream_t stream) {
  return with_packed_code(p.code, [&]<Code kCode> { return launch_code<kCode>(p, stream); });
}

}  // namespace aoext::cuda
