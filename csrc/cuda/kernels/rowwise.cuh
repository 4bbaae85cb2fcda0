// What ends every product of rowwise.h: scales, bias, one rounding.
#pragma once

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

// The product of one of the experts, by its weight; what it has of x and y, and how many rows, stays as it is.
__device__ __forceinline__ RowwiseLinear of_expert(const RowwiseLinear& p, int64_t expert) {
  RowwiseLinear own = p;
  const int64_t codes = p.N * p.K, bytes = p.weight_type == Element::lut4 ? codes / 2 : codes;
  own.weight = static_cast<const uint8_t*>(p.weight) + expert * bytes;
  own.scale = behind(p.scale, expert * p.N, p.scale_type);
  own.bias = behind(p.bias, expert * p.N, p.bias_type);
  return own;
}

// What all outputs of channel n share.
struct Channel {
  float scale, bias;
};

__device__ __forceinline__ Channel load_channel(const RowwiseLinear& p, int64_t n) {
  return {p.scale ? load_float(p.scale, n, p.scale_type) : 1.0f, p.bias ? load_float(p.bias, n, p.bias_type) : 0.0f};
}

// The same in two steps, for a load that has long to go: the bits in memory, of which nothing is made yet.
struct RawChannel {
  uint32_t scale, bias;
};

__device__ __forceinline__ uint32_t load_bits(const void* p, int64_t i, Element type) {
  if (!p) return 0;
  return type == Element::fp32 ? static_cast<const uint32_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
}

__device__ __forceinline__ RawChannel fetch_channel(const RowwiseLinear& p, int64_t n) {
  return {load_bits(p.scale, n, p.scale_type), load_bits(p.bias, n, p.bias_type)};
}

__device__ __forceinline__ Channel channel_of(const RowwiseLinear& p, const RawChannel& raw) {
  return {p.scale ? load_float(&raw.scale, 0, p.scale_type) : 1.0f, p.bias ? load_float(&raw.bias, 0, p.bias_type) : 0.0f};
}

__device__ __forceinline__ float load_row_scale(const RowwiseLinear& p, int64_t m) { return p.row_scale ? p.row_scale[m] : 1.0f; }

// The multiplications come first and are no part of an fma, as in csrc/generic.
template <class Sum>
__device__ __forceinline__ float scaled(Sum sum, float row_scale, const Channel& c) {
  return __fadd_rn(__fmul_rn(__fmul_rn(static_cast<float>(sum), row_scale), c.scale), c.bias);
}

// One output, of whatever type y has.
template <class Sum>
__device__ __forceinline__ void store_output(const RowwiseLinear& p, int64_t m, int64_t n, Sum sum, float row_scale,
                                             const Channel& c) {
  const int64_t i = m * p.N + n;
  switch (p.output) {
    case Element::int32: static_cast<int*>(p.y)[i] = static_cast<int>(sum); break;
    case Element::fp32: static_cast<float*>(p.y)[i] = scaled(sum, row_scale, c); break;
    case Element::fp16: static_cast<__half*>(p.y)[i] = __float2half_rn(scaled(sum, row_scale, c)); break;
    default: static_cast<__nv_bfloat16*>(p.y)[i] = __float2bfloat16_rn(scaled(sum, row_scale, c));
  }
}

}  // namespace aoext::cuda
