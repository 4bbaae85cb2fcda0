// Weights with a scale a block as rowwise_decode.cuh loads them: of 8 bits, or of 4 bits through a table of 16.
//
// The four lanes of a row pair copy, beside its weights, the aligned words that have its scales of a k-tile, so that blocks may
// be of any size that is a multiple of 16 along k, scales of any type, and rows of scales begin anywhere. Where a half of a
// k-tile lies in one block its scale multiplies the half's sum in float32. Otherwise scales multiply weights, which are rounded
// to x's type then; those that this type does not hold exactly are taken relative to the largest of the half and row, which
// multiplies the sum.
//
// Codes of 4 bits are looked up two at a time: a table of 256 pairs lies in shared memory 32 times, once for each bank, so that
// all lanes read at once. That is one instruction for two weights beside the two that make its address, where permutations of
// registers (table16.cuh) take five, all of them of the ALUs, which issue one every other cycle.
#pragma once

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/blocks_decode.h"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda::rowwise_decode {

// A BlockLinear, and what the kernel would need divisions for.
struct BlockParams : BlockLinear {
  uint32_t scale_row_bytes, scale_bytes;  // of a row of scales, of one
  uint32_t scales_end;                    // bytes of all, from the word on in which they begin
  uint32_t block_magic;                   // k / block_k = umulhi(k / 8, block_magic) for k a multiple of 16
  uint32_t last_k;                        // the largest multiple of 16 below K
  int words;                              // that hold an output channel's scales of a k-tile
  bool relative;                          // relative_scales
  // Every k-tile has as many scales, in whole words, where blocks are powers of two; then where one lies is known without
  // `begin`.
  bool regular;
  int block_log2;
  // Scales whose bits are those of a float32 after a shift; `subnormal` is what e8m0's 0 and 255 lack.
  bool shifts;
  uint32_t mask, shift, subnormal;
};

// The scales of an expert may begin at another place in a word than those of all.
__device__ __forceinline__ uint32_t misaligned(const BlockParams& p) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.block_scale)) & 3;
}
__device__ __forceinline__ BlockParams of_expert(const BlockParams& p, int64_t expert) {
  BlockParams own = p;
  static_cast<BlockLinear&>(own) = of_expert(static_cast<const BlockLinear&>(p), expert);
  own.scales_end += misaligned(own) - misaligned(p);
  return own;
}

// Exact for a power of two.
__device__ __forceinline__ float reciprocal(float v) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

template <class T>
__device__ __forceinline__ uint32_t both(float v) {
  return rounded_pair<T>(v, v);
}

template <class T>
__device__ __forceinline__ uint32_t product(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, __half>)
    return bits<uint32_t>(__hmul2(bits<__half2>(a), bits<__half2>(b)));
  else
    return bits<uint32_t>(__hmul2(bits<__nv_bfloat162>(a), bits<__nv_bfloat162>(b)));
}

// Pairs of a table's numbers for each byte of two codes.
struct PairTable {
  static constexpr int kBytes = 256 * 32 * 4;  // [byte][bank]

  uint32_t at;  // this lane's bank

  template <class T>
  __device__ __forceinline__ void start(const float* numbers, uint32_t table, int lane, int warp, int warps) {
    at = table + lane * 4;
    const float number = numbers[lane & 15] * table_factor<T>(numbers);
    for (int byte = warp; byte < 256; byte += warps) {
      const float low = __shfl_sync(~0u, number, byte & 15), high = __shfl_sync(~0u, number, byte >> 4);
      store_shared(at + byte * 128, __uint_as_float(rounded_pair<T>(low, high)));
    }
  }

  __device__ __forceinline__ void pairs(uint32_t codes, uint32_t (&pair)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = look_up(at + __byte_perm(codes, 0, 0x4440 + i) * 128);
  }

  // Not volatile: the table stays as it is.
  __device__ static __forceinline__ uint32_t look_up(uint32_t address) {
    uint32_t v;
    asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
  }
};

// kGranule: k that have one scale at least: 16, 32 of lut4, or half of a k-tile.
template <Element W, int kGranule>
struct BlocksOf {
  using Linear = BlockParams;
  static constexpr Element kType = W;
  static constexpr bool kTable = W == Element::lut4;
  static constexpr int kTileK = kTable ? 256 : 128, kHalf = kTileK / 2;
  static constexpr int kLaneK = kHalf / 4;                       // of a row and half
  static constexpr bool kWhole = kGranule == kHalf;              // halves have one scale
  static constexpr int kLaneScales = kGranule < kLaneK ? 2 : 1;  // of a row and half
  static constexpr bool kBlocks = true;
  static constexpr int kTableBytes = kTable ? PairTable::kBytes : 0;

  static __device__ __forceinline__ int k_tile_bytes(const BlockParams& p) { return kWeightBytes + p.words * (kTileN * 4); }

  template <class T>
  static __device__ __forceinline__ float row_scale(const BlockParams& p, int) {
    if constexpr (kTable) return global_scale(p) / table_factor<T>(p.table);
    return global_scale(p);
  }

  // The sums of both rows.
  struct OfHalf {
    float sum[2];
    uint32_t weights[2][kLaneScales];  // pairs
  };
  struct Nothing {};

  struct Lane {
    uint32_t begin[2];  // of the rows of scales, in bytes from the word on in which all begin
    std::conditional_t<kTable, PairTable, Nothing> table;

    template <class T>
    __device__ __forceinline__ void start(const BlockParams& p, uint32_t shared, int lane, int warp, int warps) {
      if constexpr (kTable) table.template start<T>(p.table, shared, lane, warp, warps);
    }

    __device__ __forceinline__ void aim(const BlockParams& p, int row, int next) {
      const uint32_t size = static_cast<uint32_t>(p.block_n);
      begin[0] = static_cast<uint32_t>(row) / size * p.scale_row_bytes + misaligned(p);
      begin[1] = static_cast<uint32_t>(next) / size * p.scale_row_bytes + misaligned(p);
    }

    // Where the scale of k lies, which may be behind K: in bytes from its row's first scale.
    __device__ static __forceinline__ uint32_t offset_of(const BlockParams& p, uint32_t k) {
      return __umulhi(min(k, p.last_k) / 8, p.block_magic) * p.scale_bytes;
    }
    __device__ __forceinline__ uint32_t first_word(const BlockParams& p, int row, int k_tile) const {
      return (begin[row] + offset_of(p, k_tile * kTileK)) & ~3u;
    }

    // [row pair][row][word]
    __device__ __forceinline__ void copy(const BlockParams& p, uint32_t to, int k_tile, int g, int t) const {
      const auto* const words = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(p.block_scale) & ~uintptr_t{3});
      const uint32_t first = first_word(p, 0, k_tile), next = first_word(p, 1, k_tile);
      for (int i = t; i < 2 * p.words; i += 4) {
        const uint32_t from = i < p.words ? first + i * 4 : next + (i - p.words) * 4;
        const uint32_t at = to + (g * 2 * p.words + i) * 4;
        if (from + 4 <= p.scales_end || from >= p.scales_end) {
          aoext::cuda::copy<4>(at, words + (from < p.scales_end ? from : 0), from < p.scales_end);
        } else {  // not all of the last word is there to be read
          uint32_t word = 0;
          for (uint32_t byte = 0; from + byte < p.scales_end; ++byte) word |= uint32_t{words[from + byte]} << 8 * byte;
          store_shared(at, __uint_as_float(word));
        }
      }
    }

    __device__ static __forceinline__ float scale_of(const BlockParams& p, uint32_t word) {
      if (!p.shifts) return scale_of_bits(word, p.block_scale_type);
      const uint32_t masked = word & p.mask;
      return __uint_as_float(masked << p.shift | (((masked + 1) & 0xfe) != 0 ? 0 : p.subnormal));
    }

    template <class T>
    __device__ __forceinline__ OfHalf read(const BlockParams& p, uint32_t from, int k_tile, int h, int g, int t) const {
      float scale[2][kLaneScales];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t words = from + (g * 2 + row) * p.words * 4;
#pragma unroll
        for (int s = 0; s < kLaneScales; ++s) {
          const uint32_t in_tile = h * kHalf + (kWhole ? 0 : t * kLaneK + s * 16);
          uint32_t word, at;
          if (p.regular) {
            at = (in_tile >> p.block_log2) * p.scale_bytes;
            word = load_shared_word(words + (at & ~3u));
          } else {
            at = begin[row] + offset_of(p, k_tile * kTileK + in_tile);
            word = load_shared_word(words + (at & ~3u) - first_word(p, row, k_tile));
          }
          scale[row][s] = scale_of(p, word >> (at & 3) * 8);
        }
      }
      OfHalf all;
      if constexpr (kWhole) {
        all.sum[0] = scale[0][0], all.sum[1] = scale[1][0];
        return all;
      }
      all.sum[0] = all.sum[1] = 1;
      if (p.relative) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          uint32_t largest = 0;  // that is finite
#pragma unroll
          for (int s = 0; s < kLaneScales; ++s) {
            const uint32_t magnitude = __float_as_uint(scale[row][s]) & 0x7fffffff;
            largest = max(largest, magnitude < 0x7f800000 ? magnitude : 0);
          }
          largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
          largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
          all.sum[row] = largest == 0 ? 1 : __uint_as_float(largest);
          const float inverse = reciprocal(all.sum[row]);
#pragma unroll
          for (int s = 0; s < kLaneScales; ++s) scale[row][s] *= inverse;
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row)
#pragma unroll
        for (int s = 0; s < kLaneScales; ++s) all.weights[row][s] = both<T>(scale[row][s]);
      return all;
    }

    template <class T>
    __device__ __forceinline__ void pairs(const uint4& v, int j, const OfHalf& scales, int row, uint32_t (&pair)[4]) const {
      if constexpr (kTable) {
        table.pairs(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w, pair);
      } else {
        const uint2 first = widened<T, W>(j ? v.z : v.x), second = widened<T, W>(j ? v.w : v.y);
        pair[0] = first.x, pair[1] = first.y, pair[2] = second.x, pair[3] = second.y;
      }
      if constexpr (!kWhole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = product<T>(pair[i], scales.weights[row][kLaneScales == 2 ? j / 2 : 0]);
      }
    }
  };
};

}  // namespace aoext::cuda::rowwise_decode
