// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point, for what faster kernels do not take: any even K, any
// group (it may start in the middle of a byte), any alignment, x of any type. All arithmetic is float32 fma.
//
// `int4_any_tile`: a block of 256 threads computes 64 × 64 outputs, 4 × 4 a thread, from tiles of 64 × 32 of x and w in
// shared memory as float32. Threads keep the next tile in registers while they multiply.
// `int4_any_rows`: for few tokens or few channels. The 8 warps of a block share out the bytes of 4 rows of w, 32
// neighbouring bytes at a time, for up to 8 tokens; partial sums meet in shared memory in a fixed order.
#include "cuda/kernels/int4_any.h"

#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda {
namespace {

template <class X>
__device__ __forceinline__ void store(const Int4Linear& p, int64_t m, int64_t n, float sum) {
  if (p.bias) sum += load_float(p.bias, n, p.bias_type);
  static_cast<X*>(p.y)[m * p.N + n] = rounded<X>(sum);
}

// Scale and zero point of one channel, read again when k enters another group.
struct Group {
  const Int4Linear& p;
  int64_t n;
  uint32_t end = 0;  // of the group's k
  float scale = 0, zero = 0;

  __device__ __forceinline__ float weight(uint32_t k, float q) {
    if (k >= end) {
      const uint32_t size = static_cast<uint32_t>(p.group_size), group = k / size;
      end = (group + 1) * size;
      scale = load_float(p.scale, group * p.N + n, p.scale_type);
      zero = load_float(p.zero_point, group * p.N + n, p.scale_type);
    }
    return fmaf(q, scale, zero);
  }
};

constexpr int kTile = 64, kTileK = 32, kTileThreads = 256;

template <class X>
__global__ void __launch_bounds__(kTileThreads) int4_any_tile(const __grid_constant__ Int4Linear p) {
  // One float of padding a k, in units of four: rows stay aligned for 16-byte reads.
  __shared__ __align__(16) float xs[kTileK][kTile + 4], ws[kTileK][kTile + 4];
  constexpr int kXPerThread = kTile * kTileK / kTileThreads, kBytesPerThread = kTile * kTileK / 2 / kTileThreads;
  const int thread = threadIdx.x;
  const int64_t tiles_n = (p.N + kTile - 1) / kTile;
  const int64_t m0 = blockIdx.x / tiles_n * kTile, n0 = blockIdx.x % tiles_n * kTile;
  const uint32_t K = static_cast<uint32_t>(p.K);

  // A warp reads 32 neighbouring k of one token, and 4 bytes of each of 32 neighbouring channels with their scales.
  const int x_k = thread % kTileK, x_m = thread / kTileK;
  const int w_n = thread % kTile, w_byte = thread / kTile * kBytesPerThread;
  const X* const x = static_cast<const X*>(p.x) + (m0 + x_m) * p.K + x_k;
  const uint8_t* const weight = p.weight + (n0 + w_n) * (p.K / 2) + w_byte;
  Group group{p, n0 + w_n};
  float next_x[kXPerThread], next_w[2 * kBytesPerThread];
  const auto load = [&](uint32_t k0) {
#pragma unroll
    for (int i = 0; i < kXPerThread; ++i) {
      constexpr int kStep = kTileThreads / kTileK;
      const bool valid = k0 + x_k < K && m0 + x_m + i * kStep < p.M;
      next_x[i] = valid ? to_float(x[i * kStep * p.K + k0]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBytesPerThread; ++i) {
      const uint32_t k = k0 + 2 * (w_byte + i);
      const bool valid = k < K && n0 + w_n < p.N;
      const uint32_t byte = valid ? weight[k0 / 2 + i] : 0;
#pragma unroll
      for (int j = 0; j < 2; ++j) next_w[2 * i + j] = valid ? group.weight(k + j, nibble(byte, j)) : 0.0f;
    }
  };

  const int tx = thread % 16 * 4, ty = thread / 16 * 4;
  float sum[4][4] = {};
  load(0);
  for (uint32_t k0 = 0; k0 < K; k0 += kTileK) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kXPerThread; ++i) xs[x_k][x_m + i * (kTileThreads / kTileK)] = next_x[i];
#pragma unroll
    for (int i = 0; i < 2 * kBytesPerThread; ++i) ws[2 * w_byte + i][w_n] = next_w[i];
    __syncthreads();
    if (k0 + kTileK < K) load(k0 + kTileK);
#pragma unroll 8
    for (int k = 0; k < kTileK; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&xs[k][ty]), b = *reinterpret_cast<const float4*>(&ws[k][tx]);
      const float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(as[i], bs[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (m0 + ty + i < p.M && n0 + tx + j < p.N) store<X>(p, m0 + ty + i, n0 + tx + j, sum[i][j]);
}

constexpr int kChannels = 4, kTokens = 8, kWarps = 8;

template <class X>
__global__ void __launch_bounds__(32 * kWarps) int4_any_rows(const __grid_constant__ Int4Linear p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t tiles_n = (p.N + kChannels - 1) / kChannels;
  const int64_t n0 = blockIdx.x % tiles_n * kChannels, m0 = blockIdx.x / tiles_n * kTokens;
  const X* const x = static_cast<const X*>(p.x) + m0 * p.K;
  const uint8_t* const weight = p.weight + n0 * (p.K / 2);
  const uint32_t bytes = static_cast<uint32_t>(p.K / 2), size = static_cast<uint32_t>(p.group_size);
  const int channels = static_cast<int>(min(int64_t{kChannels}, p.N - n0));
  const int tokens = static_cast<int>(min(int64_t{kTokens}, p.M - m0));

  float sum[kTokens][kChannels] = {};
  for (uint32_t b = threadIdx.x; b < bytes; b += 32 * kWarps) {
    float w[2][kChannels];
    uint32_t packed[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) packed[c] = c < channels ? weight[c * p.K / 2 + b] : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t from = static_cast<int64_t>((2 * b + j) / size) * p.N + n0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        w[j][c] = c < channels ? fmaf(nibble(packed[c], j), load_float(p.scale, from + c, p.scale_type),
                                      load_float(p.zero_point, from + c, p.scale_type))
                               : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < kTokens; ++m)
      if (m < tokens)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float v = to_float(x[m * p.K + 2 * static_cast<int64_t>(b) + j]);
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sum[m][c] = fmaf(v, w[j][c], sum[m][c]);
        }
  }

  __shared__ float partial[kWarps][kTokens * kChannels];
#pragma unroll
  for (int m = 0; m < kTokens; ++m)
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum[m][c] += __shfl_xor_sync(0xffffffff, sum[m][c], distance);
      if (lane == 0) partial[warp][m * kChannels + c] = sum[m][c];
    }
  __syncthreads();
  const int m = threadIdx.x / kChannels, c = threadIdx.x % kChannels;
  if (m >= tokens || c >= channels) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += partial[i][threadIdx.x];
  store<X>(p, m0 + m, n0 + c, total);
}

template <class X>
cudaError_t launch(const Int4Linear& p, cudaStream_t stream) {
  const auto blocks = [&](int64_t m, int64_t n) { return static_cast<unsigned>((p.M + m - 1) / m * ((p.N + n - 1) / n)); };
  if (p.M <= kTokens || p.N < 32)
    int4_any_rows<X><<<blocks(kTokens, kChannels), 32 * kWarps, 0, stream>>>(p);
  else
    int4_any_tile<X><<<blocks(kTile, kTile), kTileThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_int4_any(const Int4Linear& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch<__half>(p, stream);
    default: return launch<float>(p, stream);
  }
}

}  // namespace aoext::cuda
