// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N] with a scale a block, for what faster kernels do not take: any K, any block, any
// alignment, x of any type. All arithmetic is float32 fma. The loops are those of product_any.cuh, over bytes of w: one weight
// or, of lut4, two.
#include "cuda/kernels/blocks_any.h"

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/experts_any.cuh"

namespace aoext::cuda {
namespace {

using product_any::kRowsThreads;
using product_any::kTileThreads;

// W: the weight's type.
template <class X, Element W>
struct Operands : product_any::ByteOperands<BlockLinear, W == Element::lut4 ? 2 : 1> {
  using Base = product_any::ByteOperands<BlockLinear, W == Element::lut4 ? 2 : 1>;
  using Base::kBlockN, Base::kRun, Base::N, Base::p;
  using RawX = X;
  static constexpr bool kTable = W == Element::lut4;

  int64_t columns;

  __device__ __forceinline__ explicit Operands(const BlockLinear& p) : Base(p), columns((p.K + p.block_k - 1) / p.block_k) {}

  __device__ __forceinline__ X raw_x(int64_t m, uint32_t k) const { return static_cast<const X*>(p.x)[m * p.K + k]; }
  __device__ __forceinline__ float value(X raw) const { return to_float(raw); }
  __device__ __forceinline__ void xs(int64_t m, uint32_t k, float (&v)[kRun]) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] = to_float(raw_x(m, k + j));
  }
  // The value of code j of a byte.
  __device__ __forceinline__ float value_of(uint8_t raw, int j) const {
    if constexpr (kTable)
      return p.table[raw >> 4 * j & 15];
    else
      return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<W>(raw, 0)));
  }
  // What all codes of a block share.
  struct Block {
    float scale, zero;
  };
  __device__ __forceinline__ Block block(int64_t n, uint32_t k) const {
    const int64_t i = n / p.block_n * columns + k / static_cast<uint32_t>(p.block_k);
    return {load_block_scale(p, i), W == Element::int8 && p.zero ? static_cast<float>(p.zero[i]) : 0.0f};
  }
  __device__ __forceinline__ float weight(uint8_t raw, int j, const Block& b) const {
    if constexpr (W == Element::int8) return (value_of(raw, j) - b.zero) * b.scale;
    return value_of(raw, j) * b.scale;
  }
  __device__ __forceinline__ void ws(const uint8_t (&raw)[kBlockN], int64_t n, uint32_t k, float (&w)[kBlockN][kRun]) const {
#pragma unroll
    for (int c = 0; c < kBlockN; ++c)
#pragma unroll
      for (int j = 0; j < kRun; ++j) w[c][j] = weight(raw[c], j, block(min(n + c, N - 1), k + j));
  }
  __device__ __forceinline__ void store(int64_t m, int64_t n, float sum) const {
    sum *= global_scale(p);
    if (p.bias) sum += load_float(p.bias, n, p.bias_type);
    static_cast<X*>(p.y)[m * p.N + n] = rounded<X>(sum);
  }

  // Scale and zero point are read again when k enters another block.
  struct Channel {
    const Operands& o;
    int64_t n;
    uint32_t end = 0;  // of the block's k
    Block own = {};

    __device__ __forceinline__ void ws(uint8_t raw, uint32_t k, float (&w)[kRun]) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        if (k + j >= end) {
          const uint32_t size = static_cast<uint32_t>(min(o.p.block_k, o.p.K)), number = (k + j) / size;
          end = (number + 1) * size;
          own = o.block(n, number * size);
        }
        w[j] = o.weight(raw, j, own);
      }
    }
  };
};

template <class X, Element W>
__global__ void __launch_bounds__(kTileThreads, 2) blocks_any_tile(const __grid_constant__ BlockLinear p) {
  product_any::compute_tile(Operands<X, W>(p));
}

template <class X, Element W>
__global__ void __launch_bounds__(kRowsThreads) blocks_any_rows(const __grid_constant__ BlockLinear p) {
  product_any::compute_rows(Operands<X, W>(p));
}

template <class X, Element W>
__global__ void __launch_bounds__(kTileThreads, 2) blocks_any_tile_of_experts(const __grid_constant__ BlockLinear p) {
  product_any::compute_tile_of_experts<Operands<X, W>>(p, p.output);
}

template <class X, Element W>
__global__ void __launch_bounds__(kRowsThreads) blocks_any_rows_of_experts(const __grid_constant__ BlockLinear p) {
  product_any::compute_rows_of_experts<Operands<X, W>>(p, p.output);
}

template <class X, Element W>
cudaError_t launch_typed(const BlockLinear& p, cudaStream_t stream) {
  using O = Operands<X, W>;
  if (p.experts > 0)
    return product_any::launch<O>(blocks_any_tile_of_experts<X, W>, blocks_any_rows_of_experts<X, W>,
                                  product_any::few_rows_of_experts<O>(p.experts), p, stream);
  return product_any::launch<O>(blocks_any_tile<X, W>, blocks_any_rows<X, W>, O::kBlockM, p, stream);
}

template <class X>
cudaError_t launch_typed(const BlockLinear& p, cudaStream_t stream) {
  switch (p.weight_type) {
    case Element::lut4: return launch_typed<X, Element::lut4>(p, stream);
    case Element::int8: return launch_typed<X, Element::int8>(p, stream);
    case Element::e4m3: return launch_typed<X, Element::e4m3>(p, stream);
    default: return launch_typed<X, Element::e5m2>(p, stream);
  }
}

}  // namespace

cudaError_t KernelOf<BlocksAny>::launch(const BlockLinear& p, const BlocksAny&, void* /*workspace*/, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_typed<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_typed<__half>(p, stream);
    default: return launch_typed<float>(p, stream);
  }
}

}  // namespace aoext::cuda
