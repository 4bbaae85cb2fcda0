// How chunk_sums.h is computed: the same bits, whichever kernel does.
#pragma once

#include "cuda/kernels/chunk_sums.h"
#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda {

// What the sums of codes count in: the smallest e4m3. Those of 128 of its codes are below 2^25.
template <Element kType>
constexpr float kSumUnit = kType == Element::int8 ? 1.0f : 0x1p-9f;

// The sum of four codes, exact.
template <Element kType>
__device__ __forceinline__ int sum_of_codes(uint32_t word) {
  if constexpr (kType == Element::int8) return __dp4a(static_cast<int>(word), 0x01010101, 0);
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 pair = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<kType>(word, i)));
    sum += __float2int_rn(pair.x / kSumUnit<kType>) + __float2int_rn(pair.y / kSumUnit<kType>);
  }
  return sum;
}

// The sum of a chunk whose `lanes` neighbouring lanes of a warp, a power of two of them, have a part each.
__device__ __forceinline__ int sum_over_lanes(int sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
  return sum;
}

template <Element kType>
__device__ __forceinline__ void store_sum(const ChunkSums& s, int64_t m, int64_t chunk, int sum) {
  auto* const line = static_cast<__nv_bfloat16*>(s.sums) + (m * s.lines + chunk / kSumChunks) * kSumLine + chunk % kSumChunks;
  const float value = static_cast<float>(sum) * kSumUnit<kType>;
  const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
  line[0] = rounded, line[kSumChunks] = __float2bfloat16_rn(value - __bfloat162float(rounded));
}

}  // namespace aoext::cuda
