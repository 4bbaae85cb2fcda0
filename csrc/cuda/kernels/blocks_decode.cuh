// Weights with a scale a block as rowwise_decode.cuh loads them: of 8 bits, or of 4 bits through a table of 16.
//
// A lane copies, beside its 16 bytes of a row and half of a unit, the aligned words that have their scales, so that blocks may be
// of any size that is a multiple of 16 along k, scales of any type, and rows of scales begin anywhere. Where a half of a unit
// lies in one block its scale multiplies the half's sum in float32. Otherwise it multiplies the weights, which are rounded to x's
// type then; fp16, whose range is shorter than that of scales, gets them relative to the largest of the half and row.
#pragma once

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/blocks_decode.h"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda::rowwise_decode {

// A BlockLinear, and what kernels would divide for.
struct BlockWalk : BlockLinear {
  uint32_t scale_row_bytes, scale_bytes;  // of a row of scales, of one
  uint32_t scales_end;                    // bytes of all, from the word on in which they begin
  uint32_t block_magic;                   // k / block_k = umulhi(k / 8, block_magic) for k a multiple of 16
};

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

// kGranule: k that have one scale at least: 16, 32 of lut4, or half of a unit.
template <Element W, int kGranule>
struct BlocksOf {
  using Linear = BlockWalk;
  static constexpr Element kType = W;
  static constexpr bool kTable = W == Element::lut4;
  static constexpr int kUnitK = kTable ? 256 : 128, kHalf = kUnitK / 2;
  static constexpr int kLaneK = kHalf / 4;                       // of a row and half
  static constexpr bool kWhole = kGranule == kHalf;              // halves have one scale
  static constexpr int kLaneScales = kGranule < kLaneK ? 2 : 1;  // of a row and half
  static constexpr int kScales = 4 * kLaneScales;

  template <class T>
  static __device__ __forceinline__ float row_scale(const BlockWalk& p, int) {
    if constexpr (kTable) return global_scale(p) / table_factor<T>(p.table);
    return global_scale(p);
  }

  // Of both rows.
  struct OfHalf {
    float sum[2];
    uint32_t weights[2][kLaneScales];  // pairs
  };
  struct Nothing {};

  struct Lane {
    uint32_t begin[2];  // of the rows of scales, in bytes from the word on in which all begin
    std::conditional_t<kTable, Table16, Nothing> table;

    template <class T>
    __device__ __forceinline__ void start(const BlockWalk& p) {
      if constexpr (kTable) table.template read<T>(p.table, table_factor<T>(p.table));
    }

    __device__ static __forceinline__ uint32_t misaligned(const BlockWalk& p) {
      return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.block_scale)) & 3;
    }

    __device__ __forceinline__ void aim(const BlockWalk& p, int row, int next) {
      const uint32_t size = static_cast<uint32_t>(p.block_n);
      begin[0] = static_cast<uint32_t>(row) / size * p.scale_row_bytes + misaligned(p);
      begin[1] = static_cast<uint32_t>(next) / size * p.scale_row_bytes + misaligned(p);
    }

    __device__ static __forceinline__ uint32_t first_k(int unit, int h, int t, int s) {
      return unit * kUnitK + h * kHalf + (kWhole ? 0 : t * kLaneK + s * 16);
    }
    __device__ static __forceinline__ uint32_t block_offset(const BlockWalk& p, uint32_t k) {
      return __umulhi(k / 8, p.block_magic) * p.scale_bytes;
    }

    __device__ __forceinline__ void copy(const BlockWalk& p, uint32_t to, int unit, int t) const {
      const auto* const words = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(p.block_scale) & ~uintptr_t{3});
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < kLaneScales; ++s) {
          const uint32_t k = first_k(unit, h, t, s), offset = block_offset(p, k);
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const uint32_t from = (begin[row] + offset) & ~3u;
            const uint32_t count = k < p.K ? min(4u, p.scales_end - from) : 0;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + ((h * 2 + row) * kLaneScales + s) * 128),
                         "l"(words + (count ? from : 0)), "r"(count)
                         : "memory");
          }
        }
    }

    template <class T>
    __device__ __forceinline__ OfHalf read(const BlockWalk& p, uint32_t from, int unit, int h, int t) const {
      OfHalf all;
      float scale[2][kLaneScales];
#pragma unroll
      for (int s = 0; s < kLaneScales; ++s) {
        const uint32_t offset = block_offset(p, first_k(unit, h, t, s));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const uint32_t word = load_shared_word(from + ((h * 2 + row) * kLaneScales + s) * 128);
          scale[row][s] = scale_of_bits(word >> 8 * ((begin[row] + offset) & 3), p.block_scale_type);
        }
      }
      if constexpr (kWhole) {
        all.sum[0] = scale[0][0], all.sum[1] = scale[1][0];
      } else if constexpr (!std::is_same_v<T, __half>) {
        all.sum[0] = all.sum[1] = 1;
#pragma unroll
        for (int i = 0; i < 2 * kLaneScales; ++i)
          all.weights[i / kLaneScales][i % kLaneScales] = both<T>(scale[i / kLaneScales][i % kLaneScales]);
      } else {
        uint32_t exponents = 0;  // the largest of both rows
#pragma unroll
        for (int s = 0; s < kLaneScales; ++s) {
          const uint32_t two = (__float_as_uint(scale[0][s]) >> 23 & 0xff) | (__float_as_uint(scale[1][s]) >> 7 & 0xff0000);
          exponents = __vmaxu2(exponents, two);
        }
        exponents = __vmaxu2(exponents, __shfl_xor_sync(~0u, exponents, 1));
        exponents = __vmaxu2(exponents, __shfl_xor_sync(~0u, exponents, 2));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const uint32_t e = min(max(exponents >> 16 * row & 0xffff, 1u), 252u);
          all.sum[row] = __uint_as_float((e + 1) << 23);
#pragma unroll
          for (int s = 0; s < kLaneScales; ++s) all.weights[row][s] = both<T>(scale[row][s] * __uint_as_float((253 - e) << 23));
        }
      }
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
