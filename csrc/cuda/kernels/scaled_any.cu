// y = sum x · w + bias with scales of both by blocks, for what faster kernels do not take: any K, any block (of int4 it may start
// in the middle of a byte), any alignment. All arithmetic is float32 fma on what the codes stand for. The loops are those of
// product_any.cuh, over bytes of w.
#include "cuda/kernels/scaled_any.h"

#include "cuda/kernels/experts_any.cuh"
#include "cuda/kernels/scaled.cuh"

namespace aoext::cuda {
namespace {

using product_any::kRowsThreads;
using product_any::kTileThreads;

template <Element W, bool kInt4>
struct Operands : product_any::ByteOperands<ScaledLinear, kInt4 ? 2 : 1> {
  using Base = product_any::ByteOperands<ScaledLinear, kInt4 ? 2 : 1>;
  using Base::kBlockN, Base::kRun, Base::length, Base::N, Base::p;
  using RawX = float;

  uint32_t x_group, w_group, x_groups;

  __device__ __forceinline__ explicit Operands(const ScaledLinear& p)
      : Base(p),
        x_group(static_cast<uint32_t>(p.x_group)),
        w_group(static_cast<uint32_t>(p.w_group)),
        x_groups((length + x_group - 1) / x_group) {}

  static __device__ __forceinline__ float value_of(uint8_t code) {
    return __low2float(eight_bit::half_pair(eight_bit::half_pair_of<W>(code, 0)));
  }
  __device__ __forceinline__ float raw_x(int64_t m, uint32_t k) const {
    return value_of(static_cast<const uint8_t*>(p.x)[m * p.K + k]) * p.x_scale[m * x_groups + k / x_group];
  }
  __device__ __forceinline__ float value(float raw) const { return raw; }
  __device__ __forceinline__ void xs(int64_t m, uint32_t k, float (&v)[kRun]) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] = raw_x(m, k + j);
  }

  struct Affine {
    float scale, zero;
  };
  __device__ __forceinline__ Affine affine(int64_t n, uint32_t k) const {
    const int64_t i = n / p.block_n * p.scale_n + k / w_group * p.scale_k;
    const float scale = load_scale(p.scale, i, p.scale_type);
    if constexpr (kInt4) return {scale, load_scale(p.zero, i, p.scale_type)};
    return {scale, W == Element::int8 && p.zero ? value_of(static_cast<const uint8_t*>(p.zero)[i]) : 0.0f};
  }
  static __device__ __forceinline__ float weight(uint8_t raw, int j, const Affine& a) {
    if constexpr (kInt4) return fmaf(nibble(raw, j), a.scale, a.zero);
    return (value_of(raw) - (W == Element::int8 ? a.zero : 0.0f)) * a.scale;
  }
  __device__ __forceinline__ void ws(const uint8_t (&raw)[kBlockN], int64_t n, uint32_t k, float (&w)[kBlockN][kRun]) const {
#pragma unroll
    for (int c = 0; c < kBlockN; ++c)
#pragma unroll
      for (int j = 0; j < kRun; ++j) w[c][j] = weight(raw[c], j, affine(min(n + c, N - 1), k + j));
  }
  __device__ __forceinline__ void store(int64_t m, int64_t n, float sum) const {
    if (p.bias) sum += load_float(p.bias, n, p.bias_type);
    store_rounded(p, m, n, sum);
  }

  // Scale and zero point are read again when k enters another group.
  struct Channel {
    const Operands& o;
    int64_t n;
    uint32_t end = 0;  // of the group's k
    Affine a = {};

    __device__ __forceinline__ void ws(uint8_t raw, uint32_t k, float (&w)[kRun]) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        if (k + j >= end) a = o.affine(n, k + j), end = ((k + j) / o.w_group + 1) * o.w_group;
        w[j] = weight(raw, j, a);
      }
    }
  };
};

template <Element W, bool kInt4>
__global__ void __launch_bounds__(kTileThreads, 2) scaled_any_tile(const __grid_constant__ ScaledLinear p) {
  product_any::compute_tile(Operands<W, kInt4>(p));
}

template <Element W, bool kInt4>
__global__ void __launch_bounds__(kRowsThreads) scaled_any_rows(const __grid_constant__ ScaledLinear p) {
  product_any::compute_rows(Operands<W, kInt4>(p));
}

template <Element W, bool kInt4>
__global__ void __launch_bounds__(kTileThreads, 2) scaled_any_tile_of_experts(const __grid_constant__ ScaledLinear p) {
  product_any::compute_tile_of_experts<Operands<W, kInt4>>(p, p.output);
}

template <Element W, bool kInt4>
__global__ void __launch_bounds__(kRowsThreads) scaled_any_rows_of_experts(const __grid_constant__ ScaledLinear p) {
  product_any::compute_rows_of_experts<Operands<W, kInt4>>(p, p.output);
}

template <Element W, bool kInt4>
cudaError_t launch_typed(const ScaledLinear& p, cudaStream_t stream) {
  using O = Operands<W, kInt4>;
  if (p.experts > 0)
    return product_any::launch<O>(scaled_any_tile_of_experts<W, kInt4>, scaled_any_rows_of_experts<W, kInt4>,
                                  product_any::few_rows_of_experts<O>(p.experts), p, stream);
  return product_any::launch<O>(scaled_any_tile<W, kInt4>, scaled_any_rows<W, kInt4>, O::kBlockM, p, stream);
}

}  // namespace

cudaError_t KernelOf<ScaledAny>::launch(const ScaledLinear& p, const ScaledAny&, void* /*workspace*/, cudaStream_t stream) {
  switch (p.type) {
    case Element::int8:
      return is_int4(p) ? launch_typed<Element::int8, true>(p, stream) : launch_typed<Element::int8, false>(p, stream);
    case Element::e4m3:
      return is_int4(p) ? launch_typed<Element::e4m3, true>(p, stream) : launch_typed<Element::e4m3, false>(p, stream);
    case Element::e5m2: return is_int4(p) ? cudaErrorInvalidValue : launch_typed<Element::e5m2, false>(p, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace aoext::cuda
