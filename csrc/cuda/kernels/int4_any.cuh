// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point, for what faster kernels do not take: any even K, any
// group (it may start in the middle of a byte), any alignment, x of any type. All arithmetic is float32 fma. The loops are those
// of product_any.cuh, over bytes of w: two weights.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/product_any.cuh"

namespace aoext::cuda::int4_any {

template <class X>
struct Operands : product_any::ByteOperands<Int4Linear, 2> {
  using RawX = X;

  __device__ __forceinline__ explicit Operands(const Int4Linear& p) : ByteOperands(p) {}

  __device__ __forceinline__ X raw_x(int64_t m, uint32_t k) const { return static_cast<const X*>(p.x)[m * p.K + k]; }
  __device__ __forceinline__ float value(X raw) const { return to_float(raw); }
  __device__ __forceinline__ void xs(int64_t m, uint32_t k, float (&v)[2]) const {
    v[0] = to_float(raw_x(m, k)), v[1] = to_float(raw_x(m, k + 1));
  }
  __device__ __forceinline__ void ws(const uint8_t (&raw)[kBlockN], int64_t n, uint32_t k, float (&w)[kBlockN][2]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t group = static_cast<int64_t>((k + j) / static_cast<uint32_t>(p.group_size)) * N;
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) {
        const int64_t i = group + min(n + c, N - 1);
        w[c][j] = fmaf(nibble(raw[c], j), load_float(p.scale, i, p.scale_type), load_float(p.zero_point, i, p.scale_type));
      }
    }
  }
  __device__ __forceinline__ void store(int64_t m, int64_t n, float sum) const {
    if (p.bias) sum += load_float(p.bias, n, p.bias_type);
    static_cast<X*>(p.y)[m * p.N + n] = rounded<X>(sum);
  }

  // Scale and zero point are read again when k enters another group.
  struct Channel {
    const Operands& o;
    int64_t n;
    uint32_t end = 0;  // of the group's k
    float scale = 0, zero = 0;

    __device__ __forceinline__ void ws(uint8_t raw, uint32_t k, float (&w)[2]) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (k + j >= end) {
          const uint32_t size = static_cast<uint32_t>(o.p.group_size), group = (k + j) / size;
          end = (group + 1) * size;
          scale = load_float(o.p.scale, group * o.p.N + n, o.p.scale_type);
          zero = load_float(o.p.zero_point, group * o.p.N + n, o.p.scale_type);
        }
        w[j] = fmaf(nibble(raw, j), scale, zero);
      }
    }
  };
};

}  // namespace aoext::cuda::int4_any
