// w[N, K] = q · scale + zero_point, in float32 by one fma, rounded once.
//
// Bound by memory: K/2 bytes of a row in, 2 K or 4 K out. A thread takes 16 bytes of output (4 or 8 weights) in each of 8
// rows, so that 8 reads are in flight and one sector of scales [K/G, N] serves them all. The threads of a warp are
// neighbours along k: every store of a warp is 512 bytes in a row.
#include "cuda/kernels/dequantize_int4.h"

#include <algorithm>

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kRows = 8, kThreads = 256;

// K and group_size are multiples of kVector, weight starts at a boundary of kVector / 2 bytes, out at one of 16.
// Blocks walk k first: `columns` of them cover a row.
template <class Y, class S>
__global__ void __launch_bounds__(kThreads) dequantize_int4_wide(const __grid_constant__ DequantizeInt4 p, unsigned columns) {
  constexpr int kVector = 16 / sizeof(Y);
  using Packed = std::conditional_t<kVector == 8, uint32_t, uint16_t>;
  struct alignas(16) Vector {
    Y v[kVector];
  };
  const int64_t k = (static_cast<int64_t>(blockIdx.x % columns) * blockDim.x + threadIdx.x) * kVector;
  const int64_t n0 = (static_cast<int64_t>(blockIdx.x / columns) * blockDim.y + threadIdx.y) * kRows;
  if (k >= p.K || n0 >= p.N) return;
  const int64_t group = static_cast<uint32_t>(k) / static_cast<uint32_t>(p.group_size) * p.N + n0;
  const S* const scale = static_cast<const S*>(p.scale) + group;
  const S* const zero = static_cast<const S*>(p.zero_point) + group;
  const int rows = static_cast<int>(min(int64_t{kRows}, p.N - n0));
  uint32_t packed[kRows];
  float s[kRows], z[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < rows) {
      packed[i] = __ldcs(reinterpret_cast<const Packed*>(p.weight + (n0 + i) * (p.K / 2) + k / 2));
      s[i] = to_float(scale[i]);
      z[i] = to_float(zero[i]);
    }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < rows) {
      Vector w;
#pragma unroll
      for (int j = 0; j < kVector; ++j) w.v[j] = rounded<Y>(fmaf(nibble(packed[i], j), s[i], z[i]));
      *reinterpret_cast<Vector*>(static_cast<Y*>(p.out) + (n0 + i) * p.K + k) = w;
    }
}

// Any even K, any group (it may start in the middle of a byte), any alignment: a byte a thread.
template <class Y, class S>
__global__ void __launch_bounds__(kThreads) dequantize_int4_any(const __grid_constant__ DequantizeInt4 p, unsigned columns) {
  const int64_t b = static_cast<int64_t>(blockIdx.x % columns) * blockDim.x + threadIdx.x;
  const int64_t n = static_cast<int64_t>(blockIdx.x / columns) * blockDim.y + threadIdx.y;
  if (2 * b >= p.K || n >= p.N) return;
  const uint32_t byte = p.weight[n * (p.K / 2) + b];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t i = static_cast<uint32_t>(2 * b + j) / static_cast<uint32_t>(p.group_size) * p.N + n;
    const float s = to_float(static_cast<const S*>(p.scale)[i]), z = to_float(static_cast<const S*>(p.zero_point)[i]);
    static_cast<Y*>(p.out)[n * p.K + 2 * b + j] = rounded<Y>(fmaf(nibble(byte, j), s, z));
  }
}

template <class Y, class S>
cudaError_t launch(const DequantizeInt4& p, cudaStream_t stream) {
  constexpr int64_t kVector = 16 / sizeof(Y);
  const bool wide = p.K % kVector == 0 && p.group_size % kVector == 0 && is_aligned(p.weight, kVector / 2) && is_aligned(p.out);
  const int64_t items = p.K / (wide ? kVector : 2), rows = wide ? kRows : 1;
  unsigned width = 1;
  while (width < kThreads && width < items) width *= 2;
  const dim3 block(width, kThreads / width);
  const auto columns = static_cast<unsigned>((items + width - 1) / width);
  const auto blocks = static_cast<unsigned>(columns * ((p.N + rows * block.y - 1) / (rows * block.y)));
  if (wide)
    dequantize_int4_wide<Y, S><<<blocks, block, 0, stream>>>(p, columns);
  else
    dequantize_int4_any<Y, S><<<blocks, block, 0, stream>>>(p, columns);
  return cudaGetLastError();
}

template <class Y>
cudaError_t launch_to(const DequantizeInt4& p, cudaStream_t stream) {
  switch (p.scale_type) {
    case Element::bf16: return launch<Y, __nv_bfloat16>(p, stream);
    case Element::fp16: return launch<Y, __half>(p, stream);
    default: return launch<Y, float>(p, stream);
  }
}

}  // namespace

cudaError_t launch_dequantize_int4(const DequantizeInt4& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_to<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_to<__half>(p, stream);
    default: return launch_to<float>(p, stream);
  }
}

}  // namespace aoext::cuda
