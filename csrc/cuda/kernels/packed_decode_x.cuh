// One row of x in shared memory, as packed_decode.cuh multiplies it, with the sums that zeros and the base of codes meet.
#pragma once

#include "cuda/kernels/packed.cuh"
#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda::packed_decode {

using packed::Operand;
using packed::Unit;

// Words of sixteen codes of two bits: the pairs that are 2 s bits up, which lie eight apart, go where they are in bf16's mantissa
// as 4^(s % 3) times what they are, which x makes good.
constexpr int kWordRun = 64;  // four of them, one a lane
template <class T>
constexpr int kPlaces = std::is_same_v<T, __half> ? 1 : 3;

template <class T, int kS>
__device__ __forceinline__ uint32_t pair_of_word(uint32_t word) {
  constexpr int kPlace = kS % kPlaces<T>;
  constexpr uint32_t kAbove = (Operand<T, Code::int2>::kUpper & 0xff00u) * 0x10001u;
  return and_xor<0x00030003u << 2 * kPlace, kAbove>(word >> 2 * (kS - kPlace));
}

// Whether codes are read so.
template <Code kCode>
constexpr bool kHasWords = kCode == Code::int2;

// x in shared memory: rows of runs, then for each run {what the base of codes adds to their sum, the sum of x}.
struct SharedX {
  uint16_t* x;
  float2* sums;
  int run_log2;  // k
};

template <class T>
__device__ __forceinline__ float sum_of_eight(const uint4& v) {
  const auto sum = [](uint32_t pair) {
    if constexpr (std::is_same_v<T, __half>) {
      const float2 both = __half22float2(bits<__half2>(pair));
      return both.x + both.y;
    } else {
      return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
    }
  };
  return (sum(v.x) + sum(v.y)) + (sum(v.z) + sum(v.w));
}

// The sum of `count` neighbouring lanes' numbers, 2, 4 or 8.
__device__ __forceinline__ float sum_of_lanes(float v, int count) {
  v += __shfl_xor_sync(~0u, v, 1);
  if (count > 2) v += __shfl_xor_sync(~0u, v, 2);
  if (count > 4) v += __shfl_xor_sync(~0u, v, 4);
  return v;
}

// Sixteen k of two lanes in the order of pair_of_word, of which each gets four pairs; each as small as its place wants it.
template <class T>
__device__ __forceinline__ uint4 pairs_eight_apart(const uint4& v, bool is_odd) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const uint32_t got0 = __shfl_xor_sync(~0u, is_odd ? v.x : v.z, 1), got1 = __shfl_xor_sync(~0u, is_odd ? v.y : v.w, 1);
  const uint32_t low[2] = {is_odd ? got0 : v.x, is_odd ? got1 : v.y}, high[2] = {is_odd ? v.z : got0, is_odd ? v.w : got1};
  uint32_t all[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float small = 1.0f / (1 << 2 * (j % kPlaces<T>)), odd = 1.0f / (1 << 2 * ((4 + j) % kPlaces<T>));
    const auto factor = rounded<T>(is_odd ? odd : small);
    all[j] = __byte_perm(low[j / 2], high[j / 2], j % 2 ? 0x7632 : 0x5410);
    all[j] = bits<uint32_t>(__hmul2(bits<Pair>(all[j]), Pair{factor, factor}));
  }
  return {all[0], all[1], all[2], all[3]};
}

// By the block, eight k a thread. Zeros behind K.
template <class T, Code kCode>
__device__ __forceinline__ void stage_x(const PackedLinear& p, const SharedX& to, int padded_k) {
  using Op = Operand<T, kCode>;
  const int lanes = 1 << to.run_log2 >> 3;
  for (int k = threadIdx.x * 8; k < padded_k; k += blockDim.x * 8) {
    uint4 v{};
    if (k < p.K) v = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + k);
    float sum = 0, base = 0;
    if constexpr (Unit<kCode>::kHasZero || Op::kHasBase) sum = base = sum_of_lanes(sum_of_eight<T>(v), lanes);
    if constexpr (kHasWords<kCode>) {
      if (1 << to.run_log2 == kWordRun) {
        v = pairs_eight_apart<T>(v, k / 8 % 2);
        base = sum_of_lanes(sum_of_eight<T>(v), lanes);
      }
    }
    *reinterpret_cast<uint4*>(to.x + k) = v;
    if ((k >> to.run_log2) << to.run_log2 == k) to.sums[k >> to.run_log2] = {base * Op::kWholeBase, sum};
  }
}

}  // namespace aoext::cuda::packed_decode
