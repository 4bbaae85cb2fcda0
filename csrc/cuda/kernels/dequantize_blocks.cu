// w[N, K] = ((value − zero) · scale) · global_scale, in float32, rounded once.
//
// Bound by memory: K or K/2 bytes of a row in, 2 K or 4 K out. A thread takes 8 weights in each of 4 rows, whose reads are in
// flight together; the threads of a warp are neighbours along k, so that each store is of 512 bytes in a row. Entries of a table
// of 16 lie in 16 banks of shared memory: look-ups of a warp never wait for each other.
#include "cuda/kernels/dequantize_blocks.h"
#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/scales.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kVector = 8, kRows = 4, kThreads = 256;
// Blocks of a multiprocessor, for 64 registers a thread: ptxas for sm_80 takes 32 and memory if nothing is said.
constexpr int kBlocks = 4;

struct Place {
  int64_t k, n;
};

// Where the scale of a weight lies.
__device__ __forceinline__ int64_t scale_index(const DequantizeBlocks& p, int64_t n, int64_t k) {
  const auto block = static_cast<uint32_t>(p.block_k), groups = (static_cast<uint32_t>(p.K) - 1) / block + 1;
  return (p.block_n == 1 ? n : n / p.block_n) * groups + static_cast<uint32_t>(k) / block;
}

// The first weight of a thread that takes `vector` in each of `rows` rows; blocks walk k first, `columns` of them cover a row.
__device__ __forceinline__ Place place(unsigned columns, int vector, int rows) {
  return {(static_cast<int64_t>(blockIdx.x % columns) * blockDim.x + threadIdx.x) * vector,
          (static_cast<int64_t>(blockIdx.x / columns) * blockDim.y + threadIdx.y) * rows};
}

__device__ __forceinline__ void fill_table(float (&table)[16], const DequantizeBlocks& p) {
  const unsigned i = threadIdx.y * blockDim.x + threadIdx.x;
  if (p.table != nullptr && i < 16) table[i] = p.table[i];
  __syncthreads();
}

// K and block_k are multiples of kVector, weight starts at a boundary of as many codes, out at one of 16 bytes.
template <class Y, Element kWeight>
__global__ void __launch_bounds__(kThreads, kBlocks)
    dequantize_blocks_wide(const __grid_constant__ DequantizeBlocks p, unsigned columns) {
  constexpr bool kLut = kWeight == Element::lut4;
  using Codes = std::conditional_t<kLut, uint32_t, uint2>;
  struct alignas(16) Vector {
    Y v[kVector];
  };
  __shared__ float table[16];
  if constexpr (kLut) fill_table(table, p);
  const auto [k, n0] = place(columns, kVector, kRows);
  if (k >= p.K || n0 >= p.N) return;
  const int rows = static_cast<int>(min(int64_t{kRows}, p.N - n0));
  const int64_t row_codes = p.K / kVector;
  const Codes* const from = reinterpret_cast<const Codes*>(p.weight) + n0 * row_codes + k / kVector;
  const float whole = p.global_scale == nullptr ? 1.0f : *p.global_scale;
  Codes codes[kRows];
  float scale[kRows], zero[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < rows) {
      codes[i] = __ldcs(from + i * row_codes);
      const int64_t at = scale_index(p, n0 + i, k);
      scale[i] = load_scale(p.scale, at, p.scale_type);
      zero[i] = p.zero == nullptr ? 0.0f : static_cast<float>(p.zero[at]);
    }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < rows) {
      Vector w;
#pragma unroll
      for (int j = 0; j < kVector; j += 2) {
        float2 value;
        if constexpr (kLut) {
          value = {table[codes[i] >> 4 * j & 15], table[codes[i] >> (4 * j + 4) & 15]};
        } else {
          const uint32_t word = j < 4 ? codes[i].x : codes[i].y;
          value = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<kWeight>(word, j / 2 % 2)));
        }
        w.v[j] = rounded<Y>(__fmul_rn(__fmul_rn(value.x - zero[i], scale[i]), whole));
        w.v[j + 1] = rounded<Y>(__fmul_rn(__fmul_rn(value.y - zero[i], scale[i]), whole));
      }
      *reinterpret_cast<Vector*>(static_cast<Y*>(p.out) + (n0 + i) * p.K + k) = w;
    }
}

// Any K, block and alignment: a weight a thread.
template <class Y, Element kWeight>
__global__ void __launch_bounds__(kThreads) dequantize_blocks_any(const __grid_constant__ DequantizeBlocks p, unsigned columns) {
  constexpr bool kLut = kWeight == Element::lut4;
  const auto [k, n] = place(columns, 1, 1);
  if (k >= p.K || n >= p.N) return;
  const int64_t at = scale_index(p, n, k);
  const uint32_t byte = p.weight[kLut ? n * (p.K / 2) + k / 2 : n * p.K + k];
  float value;
  if constexpr (kLut)
    value = p.table[byte >> 4 * (k % 2) & 15];
  else
    value = __low2float(eight_bit::half_pair(eight_bit::half_pair_of<kWeight>(byte, 0)));
  const float zero = p.zero == nullptr ? 0.0f : static_cast<float>(p.zero[at]);
  const float scaled = __fmul_rn(value - zero, load_scale(p.scale, at, p.scale_type));
  static_cast<Y*>(p.out)[n * p.K + k] = rounded<Y>(p.global_scale == nullptr ? scaled : __fmul_rn(scaled, *p.global_scale));
}

template <class Y, Element kWeight>
cudaError_t launch(const DequantizeBlocks& p, cudaStream_t stream) {
  const int code_bytes = kWeight == Element::lut4 ? kVector / 2 : kVector;
  const bool wide = p.K % kVector == 0 && p.block_k % kVector == 0 && is_aligned(p.weight, code_bytes) && is_aligned(p.out);
  const int64_t items = wide ? p.K / kVector : p.K, rows = wide ? kRows : 1;
  unsigned width = 1;
  while (width < kThreads && width < items) width *= 2;
  const dim3 block(width, kThreads / width);
  const auto columns = static_cast<unsigned>(ceil_div(items, int64_t{width}));
  const auto blocks = static_cast<unsigned>(columns * ceil_div(p.N, rows * block.y));
  if (wide)
    dequantize_blocks_wide<Y, kWeight><<<blocks, block, 0, stream>>>(p, columns);
  else
    dequantize_blocks_any<Y, kWeight><<<blocks, block, 0, stream>>>(p, columns);
  return cudaGetLastError();
}

template <class Y>
cudaError_t launch_to(const DequantizeBlocks& p, cudaStream_t stream) {
  switch (p.weight_type) {
    case Element::int8: return launch<Y, Element::int8>(p, stream);
    case Element::e4m3: return launch<Y, Element::e4m3>(p, stream);
    case Element::e5m2: return launch<Y, Element::e5m2>(p, stream);
    default: return launch<Y, Element::lut4>(p, stream);
  }
}

}  // namespace

cudaError_t launch_dequantize_blocks(const DequantizeBlocks& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_to<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_to<__half>(p, stream);
    default: return launch_to<float>(p, stream);
  }
}

}  // namespace aoext::cuda
