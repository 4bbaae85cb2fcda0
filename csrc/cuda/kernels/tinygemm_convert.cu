// Between rows of packed bytes and the tinygemm layout, and back.
//
// Memory-bound: N·K/2 bytes are read once and written once. A warp turns 8 rows × 128 of k: lane (g, t) has
// the 16 bytes of row g that hold k = 32t .. 32t + 31, so both sides move in segments of 64 bytes or more. A
// word of the layout takes bytes p·4 + t of that quarter, p = 0..3, for all t: each lane makes the words of its
// quarter for all four t, and the quad transposes them.
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tinygemm.h"
#include "cuda/kernels/tinygemm_layout.cuh"

namespace aoext::cuda {
namespace {

constexpr int kThreads = 256;

// The low four bits of every byte, in the low 16 bits; and back.
__device__ __forceinline__ uint32_t gather_nibbles(uint32_t v) {
  v &= 0x0f0f0f0f;
  v = (v | v >> 4) & 0x00ff00ff;
  return (v | v >> 8) & 0xffff;
}
__device__ __forceinline__ uint32_t spread_nibbles(uint32_t v) {
  v = (v | v << 8) & 0x00ff00ff;
  return (v | v << 4) & 0x0f0f0f0f;
}

// Bytes t, 4 + t, 8 + t and 12 + t of a quarter are byte t of its four words: a transposition of bytes, which
// is its own inverse.
__device__ __forceinline__ void transpose_bytes(uint32_t (&v)[4]) {
  const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
  const uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);
  v[0] = __byte_perm(a, b, 0x5410);
  v[1] = __byte_perm(a, b, 0x7632);
  v[2] = __byte_perm(c, d, 0x5410);
  v[3] = __byte_perm(c, d, 0x7632);
}

struct Place {
  int64_t n_tile;
  int chunk, lane, words;  // words: how many of the chunk's four lie below K
  bool here;
};

__device__ __forceinline__ Place place_of(int64_t n_tiles, int K) {
  const int chunks = (K + kTinygemmChunk - 1) / kTinygemmChunk;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  Place p;
  p.n_tile = warp / chunks;
  p.chunk = static_cast<int>(warp - p.n_tile * chunks);
  p.lane = threadIdx.x % 32;
  p.words = min(4, (K - p.chunk * kTinygemmChunk) / 32);
  p.here = p.n_tile < n_tiles;
  return p;
}

template <int Inner>
__global__ void __launch_bounds__(kThreads) pack_kernel(const uint8_t* weight, uint32_t* packed, int64_t n_tiles, int K) {
  const Place at = place_of(n_tiles, K);
  if (!at.here) return;
  const int g = at.lane / 4, t = at.lane % 4;
  uint32_t v[4] = {};
  if (t < at.words) {
    const uint8_t* row = weight + (at.n_tile * 8 + g) * (K / 2) + at.chunk * (kTinygemmChunk / 2) + t * 16;
    const uint4 bytes = *reinterpret_cast<const uint4*>(row);
    v[0] = bytes.x, v[1] = bytes.y, v[2] = bytes.z, v[3] = bytes.w;
  }
  transpose_bytes(v);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = gather_nibbles(v[i] >> 4) | gather_nibbles(v[i]) << 16;
  transpose_quad(v, t);
  uint32_t* chunk = packed + at.n_tile * K + static_cast<int64_t>(at.chunk) * kTinygemmChunkWords;
  store_chunk<Inner>(chunk, at.lane, at.words, make_uint4(v[0], v[1], v[2], v[3]));
}

template <int Inner>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const uint32_t* packed, uint8_t* weight, int64_t n_tiles, int K) {
  const Place at = place_of(n_tiles, K);
  if (!at.here) return;
  const int g = at.lane / 4, t = at.lane % 4;
  const uint32_t* chunk = packed + at.n_tile * K + static_cast<int64_t>(at.chunk) * kTinygemmChunkWords;
  uint32_t v[4] = {};
  load_chunk<Inner>(v, chunk, at.lane, at.words);
  transpose_quad(v, t);
  // u − 8 as a two's complement nibble is u XOR 8.
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = (spread_nibbles(v[i] & 0xffff) | spread_nibbles(v[i] >> 16) << 4) ^ 0x88888888;
  transpose_bytes(v);
  if (t >= at.words) return;
  uint8_t* row = weight + (at.n_tile * 8 + g) * (K / 2) + at.chunk * (kTinygemmChunk / 2) + t * 16;
  *reinterpret_cast<uint4*>(row) = make_uint4(v[0], v[1], v[2], v[3]);
}

__global__ void __launch_bounds__(kThreads) split_kernel(const uint32_t* pairs, uint16_t* scale, uint16_t* zero, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t pair = pairs[i];
  scale[i] = static_cast<uint16_t>(pair);
  zero[i] = static_cast<uint16_t>(pair >> 16);
}

unsigned convert_blocks(int64_t N, int64_t K) {
  const int64_t warps = N / 8 * ((K + kTinygemmChunk - 1) / kTinygemmChunk);
  return static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch_tinygemm_pack(const void* weight, void* packed, int64_t N, int64_t K, int inner_k_tiles, cudaStream_t stream) {
  const auto kernel = inner_k_tiles == 8 ? pack_kernel<8> : inner_k_tiles == 4 ? pack_kernel<4> : pack_kernel<2>;
  kernel<<<convert_blocks(N, K), kThreads, 0, stream>>>(static_cast<const uint8_t*>(weight), static_cast<uint32_t*>(packed),
                                                        N / 8, static_cast<int>(K));
  return cudaGetLastError();
}

cudaError_t launch_tinygemm_unpack(const void* packed, void* weight, int64_t N, int64_t K, int inner_k_tiles,
                                   cudaStream_t stream) {
  const auto kernel = inner_k_tiles == 8 ? unpack_kernel<8> : inner_k_tiles == 4 ? unpack_kernel<4> : unpack_kernel<2>;
  kernel<<<convert_blocks(N, K), kThreads, 0, stream>>>(static_cast<const uint32_t*>(packed), static_cast<uint8_t*>(weight),
                                                        N / 8, static_cast<int>(K));
  return cudaGetLastError();
}

cudaError_t launch_tinygemm_split(const void* scale_and_zero, void* scale, void* zero, int64_t count, cudaStream_t stream) {
  split_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const uint32_t*>(scale_and_zero), static_cast<uint16_t*>(scale), static_cast<uint16_t*>(zero), count);
  return cudaGetLastError();
}

}  // namespace aoext::cuda
