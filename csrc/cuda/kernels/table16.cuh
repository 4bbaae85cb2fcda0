// A table of 16 numbers in registers, and eight codes of 4 bits through it.
#pragma once

#include "cuda/kernels/numbers.cuh"

namespace aoext::cuda {

// A number is two bytes, of which prmt picks four of one of eight each: 21 instructions for eight codes.
struct Table16 {
  uint32_t low[4], high[4];  // bytes, four numbers a word

  template <class T>
  __device__ __forceinline__ void read(const float* table, float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t a = rounded_pair<T>(table[4 * i] * factor, table[4 * i + 1] * factor);
      const uint32_t b = rounded_pair<T>(table[4 * i + 2] * factor, table[4 * i + 3] * factor);
      low[i] = __byte_perm(a, b, 0x6420), high[i] = __byte_perm(a, b, 0x7531);
    }
  }

  __device__ static __forceinline__ uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
    return v;
  }

  // What a word of codes stands for: pairs of bf16 or fp16, in their order.
  __device__ __forceinline__ void pairs(uint32_t codes, uint32_t (&pair)[4]) const {
    const uint32_t lower_bits = codes & 0x77777777u, shifted = codes << 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t selector = half ? lower_bits >> 16 : lower_bits;
      const uint32_t upper = permuted(codes, shifted, half ? 0xbfae : 0x9d8c);  // all bits of a byte where its code is 8 or more
      const auto pick = [&](const uint32_t (&bytes)[4]) {
        return (permuted(bytes[0], bytes[1], selector) & ~upper) | (permuted(bytes[2], bytes[3], selector) & upper);
      };
      const uint32_t l = pick(low), h = pick(high);
      pair[2 * half] = __byte_perm(l, h, 0x5140), pair[2 * half + 1] = __byte_perm(l, h, 0x7362);
    }
  }
};

// What a table's numbers are multiplied by before they are rounded to T: 1 where T holds them all, so that codes' values stay
// what they are; else 1 over the largest, which is exact then, as its weights count most. (Numbers up to 128 leave fp16 room for
// scales.)
template <class T>
__device__ __forceinline__ float table_factor(const float* table) {
  float largest = 0;
  bool exact = true;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    largest = fmaxf(largest, fabsf(table[i]));
    exact = exact && to_float(rounded<T>(table[i])) == table[i];
  }
  const bool in_range = !std::is_same_v<T, __half> || largest <= 128;
  return (exact && in_range) || !(largest > 0) || isinf(largest) ? 1.0f : 1 / largest;
}

}  // namespace aoext::cuda
