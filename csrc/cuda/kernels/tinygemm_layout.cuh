// The tinygemm layout as a warp sees it.
//
// Eight output channels make an n-tile, and its words lie together: K/8 · 8 int32. Lane (g, t) = (lane / 4,
// lane % 4) of a warp owns channel g of the n-tile. A word holds 8 values of 32 consecutive k: nibble p of its
// low half is k = 8p + 2t, nibble p of its high half k = 8p + 2t + 1 (p = 0..3), which are a lane's operands of
// two mma.m16n8k16. inner_k_tiles says how many k-tiles of 16 a lane has side by side, so how its loads cluster;
// a "chunk" here is 128 of k: four words a lane, 512 bytes a warp, whatever inner_k_tiles is.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aoext::cuda {

constexpr int kTinygemmChunk = 128;  // of k
constexpr int kTinygemmChunkWords = kTinygemmChunk * 8 / 8;

// Word i (0..3) of a lane's chunk, from the chunk's first word.
template <int Inner>
__device__ __forceinline__ int word_offset(int i, int lane) {
  constexpr int kWords = Inner / 2;  // of a lane, side by side
  return (i / kWords) * 32 * kWords + lane * kWords + i % kWords;
}

// Loads that happen or not without a branch. Weights are read once: they go past L1, and L2 fetches whole lines.
__device__ __forceinline__ void stream_load(uint32_t (&v)[1], const uint32_t* p, bool here) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.L1::no_allocate.L2::128B.b32 %0, [%1];\n}"
               : "+r"(v[0])
               : "l"(p), "r"(static_cast<int>(here)));
}
__device__ __forceinline__ void stream_load(uint32_t (&v)[2], const uint32_t* p, bool here) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];\n}"
               : "+r"(v[0]), "+r"(v[1])
               : "l"(p), "r"(static_cast<int>(here)));
}
__device__ __forceinline__ void stream_load(uint32_t (&v)[4], const uint32_t* p, bool here) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
      : "l"(p), "r"(static_cast<int>(here)));
}
__device__ __forceinline__ void load_word(uint32_t& v, const uint32_t* p, bool here) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
               : "+r"(v)
               : "l"(p), "r"(static_cast<int>(here)));
}

// The first `words` of a lane's four words of a chunk; the others keep what they were.
template <int Inner>
__device__ __forceinline__ void load_chunk(uint32_t (&v)[4], const uint32_t* chunk, int lane, int words) {
  constexpr int kWords = Inner / 2;
#pragma unroll
  for (int i = 0; i < 4; i += kWords)
    stream_load(reinterpret_cast<uint32_t (&)[kWords]>(v[i]), chunk + word_offset<Inner>(i, lane), i < words);
}

template <int Inner>
__device__ __forceinline__ void store_chunk(uint32_t* chunk, int lane, int words, uint4 v) {
  if constexpr (Inner == 8) {
    *reinterpret_cast<uint4*>(chunk + word_offset<8>(0, lane)) = v;
  } else if constexpr (Inner == 4) {
    *reinterpret_cast<uint2*>(chunk + word_offset<4>(0, lane)) = make_uint2(v.x, v.y);
    if (words > 2) *reinterpret_cast<uint2*>(chunk + word_offset<4>(2, lane)) = make_uint2(v.z, v.w);
  } else {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < words) chunk[word_offset<2>(i, lane)] = w[i];
  }
}

}  // namespace aoext::cuda
