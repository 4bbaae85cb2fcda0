// A thread takes four neighbours of a row.
#include "cuda/kernels/limbs.h"

#include <algorithm>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kThreads = 128, kCount = 4;

template <Element X>
__device__ __forceinline__ float4 read_four(const void* x, int64_t i) {
  if constexpr (X == Element::fp32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(x) + i);
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(x) + i);
    const float2 low = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<X>(word, 0))),
                 high = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<X>(word, 1)));
    return {low.x, low.y, high.x, high.y};
  }
}

template <Element X>
__global__ void __launch_bounds__(kThreads) split_into_limbs(const __grid_constant__ Limbs p) {
  start_next_kernel();
  wait_for_last_kernel();
  const int64_t k = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount, m = blockIdx.y;
  if (k >= p.K) return;
  const float4 four = read_four<X>(p.x, m * p.K + k);
  float rest[kCount] = {four.x, four.y, four.z, four.w};
  if (p.scale) {
    const auto group = static_cast<uint32_t>(p.group);
    const float* const scales = p.scale + m * ((static_cast<uint32_t>(p.K) + group - 1) / group);
#pragma unroll
    for (int j = 0; j < kCount; ++j) rest[j] *= scales[static_cast<uint32_t>(k + j) / group];
  }
  for (int limb = 0; limb < p.count; ++limb) {
    const uint32_t low = rounded_pair<__nv_bfloat16>(rest[0], rest[1]), high = rounded_pair<__nv_bfloat16>(rest[2], rest[3]);
    auto* const to = static_cast<uint16_t*>(p.limbs) + (m * p.count + limb) * p.K + k;
    *reinterpret_cast<uint2*>(to) = {low, high};
    rest[0] -= __uint_as_float(low << 16), rest[1] -= __uint_as_float(low & 0xffff0000u);
    rest[2] -= __uint_as_float(high << 16), rest[3] -= __uint_as_float(high & 0xffff0000u);
  }
}

}  // namespace

cudaError_t launch_limbs(const Limbs& p, cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;  // places along y
  void (*const type_kernel)(Limbs) = p.type == Element::fp32   ? split_into_limbs<Element::fp32>
                                     : p.type == Element::int8 ? split_into_limbs<Element::int8>
                                                               : split_into_limbs<Element::e4m3>;
  const int64_t groups = p.scale ? ceil_div(p.K, p.group) : 0;
  for (int64_t m = 0; m < p.M; m += kMostRows) {
    Limbs own = p;
    own.M = std::min(p.M - m, kMostRows);
    own.x = static_cast<const char*>(p.x) + m * p.K * bytes_of(p.type);
    own.scale = p.scale ? p.scale + m * groups : nullptr;
    own.limbs = static_cast<uint16_t*>(p.limbs) + m * p.count * p.K;
    const dim3 blocks(static_cast<unsigned>(ceil_div(p.K, kThreads * kCount)), static_cast<unsigned>(own.M));
    const cudaError_t error = launch(type_kernel, Grid{blocks, dim3(kThreads), 0, stream, 1, Overlap::after_ours}, own);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace aoext::cuda
