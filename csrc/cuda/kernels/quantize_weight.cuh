// The arithmetic of weights' quantisation (python/aoext/packing), bit for bit: scales of blocks, and codes of their elements.
#pragma once

#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/quantize_weight.h"
#include "cuda/kernels/scales.cuh"

namespace aoext::cuda::weights {

using quantize::absmax_of;
using quantize::element;
using quantize::kInfinity;
using quantize::Piece;
using quantize::Words;

constexpr float kNaN = __builtin_nanf(""),
                kMagic = 0x1.8p23f;  // whose ulp is 1: a sum with it rounds to an integer, ties to even
constexpr float kSmallestAbsmax = 1e-38f, kSmallestLargest = 0x1p-64f, kLift = 0x1p64f;
constexpr float kE4m3Max = 448, kE4m3Tiny = 0x1p-6f;

__host__ __device__ constexpr bool is_float(Element scale) {
  return scale == Element::fp32 || scale == Element::bf16 || scale == Element::fp16;
}

__device__ __forceinline__ float min_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}

__device__ __forceinline__ float max_nan(float a, float b) { return -min_nan(-a, -b); }

__device__ __forceinline__ bool is_finite(float v) { return (__float_as_uint(v) & kInfinity) != kInfinity; }

// The least and the largest of numbers; NaN where one is.
struct Range {
  float low, high;
  __device__ __forceinline__ void add(const Range& other) { low = min_nan(low, other.low), high = max_nan(high, other.high); }
};

template <class T, int kCount, int kWords>
__device__ __forceinline__ Range range_of(const Words<kWords>& piece) {
  if constexpr (sizeof(T) == 4) {
    Range r{element<T>(piece.w, 0), element<T>(piece.w, 0)};
#pragma unroll
    for (int i = 1; i < kWords; ++i) r.add({element<T>(piece.w, i), element<T>(piece.w, i)});
    return r;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Words<kWords> low = piece, high = piece;
    if constexpr (kCount == 1) low.w[0] = high.w[0] = piece.w[0] << 16 | piece.w[0];
    auto *const lows = reinterpret_cast<Pair*>(low.w), *const highs = reinterpret_cast<Pair*>(high.w);
#pragma unroll
    for (int i = 1; i < kWords; ++i) lows[0] = __hmin2_nan(lows[0], lows[i]), highs[0] = __hmax2_nan(highs[0], highs[i]);
    return {min_nan(element<T>(low.w, 0), element<T>(low.w, 1)), max_nan(element<T>(high.w, 0), element<T>(high.w, 1))};
  }
}

// A scale ≥ 0 as it is where that is a normal number of its type, a smaller one rounded up.
__device__ __forceinline__ float held(float scale, Element type) {
  if (!(scale < (type == Element::fp16 ? 0x1p-14f : 0x1p-126f))) return scale;
  if (type == Element::fp32) return fmaxf(scale, 0x1p-149f);
  const float steps = type == Element::fp16 ? __fmul_rn(scale, 0x1p24f) : __fmul_rn(__fmul_rn(scale, 0x1p100f), 0x1p33f);
  return __fmul_rn(fmaxf(ceilf(steps), 1), type == Element::fp16 ? 0x1p-24f : 0x1p-133f);
}

// Stores a float scale or zero point i; a power of two as its exponent, and a float8 as its nearest, which they are already.
__device__ __forceinline__ void store_scale(void* p, int64_t i, float v, Element type) {
  switch (type) {
    case Element::fp32: static_cast<float*>(p)[i] = v; break;
    case Element::bf16: static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(v); break;
    case Element::fp16: static_cast<__half*>(p)[i] = __float2half_rn(v); break;
    case Element::e8m0: static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(isnan(v) ? 255 : __float_as_uint(v) >> 23); break;
    default: static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(isnan(v) ? 0x7f : quantize::encode_float8<Element::e4m3>(v));
  }
}

// What the whole weight's scale is, where it has one: beside it, what meets weights so small that float32 has no such numbers.
struct Whole {
  float scale = 1, lift = 1;  // the scale is lifted

  Whole() = default;
  __device__ __forceinline__ Whole(float largest, float limit) {
    lift = largest < kSmallestLargest ? kLift : 1;
    scale = __fmul_rn(stored(largest, limit), lift);
  }
  __device__ __forceinline__ float stored(float largest, float limit) const {
    const float wanted = __fdiv_rn(__fdiv_rn(__fmul_rn(largest, lift), __fmul_rn(kE4m3Max, limit)), lift);
    return !is_finite(largest) ? kNaN : largest == 0 ? 1 : fmaxf(wanted, 0x1p-149f);
  }
};

// What a block's elements x become codes by: (x − low) / divisor, or x · lift · factor where there is no divisor.
struct Block {
  float scale, zero_point;  // as they are stored, but for rounding
  float low = 0, divisor = 0, lift = 1, factor = 0;
  bool is_moderate;  // a reciprocal and one correction divide as IEEE does, or nothing is lifted
  bool finite = true, is_flat = false, is_asymmetric = false;

  __device__ __forceinline__ void divide_by(float by) {
    divisor = by;
    is_moderate = fabsf(by) > 0x1p-60f && fabsf(by) < 0x1p60f;
    factor = __frcp_rn(by);
  }

  static __device__ __forceinline__ Block broken() {
    Block b{};
    b.scale = b.zero_point = kNaN, b.finite = false, b.is_moderate = true;
    return b;
  }

  // int4 of a group's range.
  __device__ __forceinline__ Block(const Range& range, Element type, bool symmetric) {
    const float low_ = range.low, high = range.high;
    if (symmetric) {
      const float largest = fmaxf(high, -low_), magnitude = held(__fmul_rn(largest, 0.125f), type);
      scale = high > -low_ ? -magnitude : magnitude;
      divide_by(scale);
      is_flat = largest == 0;
      if (is_flat) scale = 0;
      zero_point = 0;
      return;
    }
    const float spread = __fsub_rn(high, low_);
    const bool wide = !is_finite(spread);
    const float step = wide ? __fsub_rn(__fdiv_rn(high, 15), __fdiv_rn(low_, 15)) : __fdiv_rn(spread, 15);
    is_flat = spread == 0;
    scale = is_flat ? 0 : held(step, type);
    zero_point = wide ? __fmul_rn(__fadd_rn(__fmul_rn(low_, 0.125f), scale), 8) : __fadd_rn(low_, __fmul_rn(scale, 8));
    low = low_, is_asymmetric = true;
    divide_by(is_flat ? 1 : scale);
    lift = wide ? 0.125f : 1;
  }

  // Other codes, of a block's largest magnitude.
  __device__ __forceinline__ Block(float amax, float limit, bool looks_up, Element type, const Whole& whole) : zero_point(0) {
    if (type == Element::e8m0) {
      const uint32_t ratio = __float_as_uint(__fdiv_rn(amax, limit));
      const uint32_t u = min(ratio <= 1u << 22 ? 0u : (ratio + (1u << 23) - 1) >> 23, 254u);
      scale = power_of_exponent(u);
      factor = power_of_exponent(254 - u);
      is_moderate = true;
    } else if (type == Element::e4m3) {
      const float wanted = __fdiv_rn(__fdiv_rn(__fmul_rn(amax, whole.lift), limit), whole.scale);
      scale = float_of_e4m3(quantize::encode_float8<Element::e4m3>(fminf(fmaxf(wanted, kE4m3Tiny), kE4m3Max)));
      lift = whole.lift;
      factor = __fdiv_rn(__frcp_rn(whole.scale), scale);
      is_moderate = lift == 1;
    } else if (looks_up) {
      lift = amax < kSmallestAbsmax ? kLift : 1;
      factor = __fdiv_rn(limit, fmaxf(__fmul_rn(amax, lift), kSmallestAbsmax));
      scale = __fdiv_rn(amax, limit);
      is_moderate = lift == 1;
    } else {
      scale = amax > 0 ? held(__fdiv_rn(amax, limit), type) : 1;
      divide_by(scale);
    }
  }

 private:
  Block() = default;
};

// 16 values in their order, and what is between two of them.
struct Table {
  // Where at most one border lies in each of kCells cells of equal width, values find their code by their cell: that border, and
  // the codes below and above it.
  static constexpr int kCells = 32;
  static constexpr float kPerLimit = 15.25f;
  enum Kind { kE2m1, kByCells, kByBorders };
  // Ties go down, up, or where 0 and −0 have the codes, with the value's sign.
  enum Tie { kDown, kUp, kBySign };

  uint2 cells[kCells];  // border, and two codes in the lowest bytes
  float borders[16];
  int ties[16];
  int codes[16];
};

// A warp's lanes look at the table together; all of them get its kind.
__device__ __forceinline__ Table::Kind make_table(const float* from, bool ties_to_even, float limit, Table& table) {
  const int lane = threadIdx.x % 32, i = lane % 16;
  const float value = from[i];
  const float of_e2m1 = __uint_as_float(static_cast<uint32_t>(i & 8) << 28 | (i & 7) << 22) * 0x1p126f;
  if (ties_to_even && __all_sync(~0u, __float_as_uint(value) == __float_as_uint(of_e2m1))) return Table::kE2m1;
  const uint32_t sign = __float_as_uint(value) >> 31;
  int place = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float other = __shfl_sync(~0u, value, j);
    const uint32_t other_sign = __shfl_sync(~0u, sign, j);
    const bool before = ties_to_even && sign != other_sign ? other_sign > sign : j < i;
    place += other < value || (other == value && before);
  }
  if (lane < 16) table.codes[place] = i, table.borders[place] = value;
  __syncwarp();
  const float own = table.borders[i], next = table.borders[min(i + 1, 15)];
  const int code = table.codes[i], above = table.codes[min(i + 1, 15)];
  __syncwarp();
  const float border = i == 15 ? __uint_as_float(kInfinity) : __fmul_rn(__fadd_rn(own, next), 0.5f);
  const int tie = !ties_to_even               ? Table::kDown
                  : (code & 1) == (above & 1) ? Table::kBySign
                  : code & 1                  ? Table::kUp
                                              : Table::kDown;
  if (lane < 16) table.borders[i] = border, table.ties[i] = tie;
  // Cells: of those below a value's, all borders are smaller.
  const float per = __fdiv_rn(Table::kPerLimit, limit);
  const int cell = i == 15 ? 64 : __float_as_int(__fmaf_rn(border, per, kMagic)) - __float_as_int(kMagic);
  const float before = __shfl_up_sync(~0u, border, 1);
  const int cell_before = __shfl_up_sync(~0u, cell, 1);
  const bool single = i == 0 || (cell > cell_before && border > before) || i == 15;
  const bool by_cells = __all_sync(~0u, single && tie == Table::kDown && fabsf(own) <= limit);
  if (by_cells) {
    const int mine = (lane - 16) & 31;  // where a sum with kMagic has cells −16 to 15 in its lowest bits
    int below = 0, in = 15;
    for (int j = 0; j < 15; ++j) {
      const int at = __shfl_sync(~0u, cell, j) + 16;
      below += at < lane;
      if (at == lane) in = j;
    }
    table.cells[mine] = {__float_as_uint(in == 15 ? __uint_as_float(kInfinity) : table.borders[in]),
                         static_cast<uint32_t>(table.codes[below] | table.codes[min(below + 1, 15)] << 8)};
  }
  __syncwarp();
  return by_cells ? Table::kByCells : Table::kByBorders;
}

// The bytes of eight words' lowest bits as nibbles, the first in the lowest.
__device__ __forceinline__ uint32_t lowest_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

__device__ __forceinline__ uint32_t highest_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

template <int kCount>
__device__ __forceinline__ uint32_t nibbles(const uint32_t (&codes)[kCount]) {
  if constexpr (kCount == 2) {
    return (codes[0] & 15) | (codes[1] & 15) << 4;
  } else {
    const uint32_t even = lowest_bytes(codes[0], codes[2], codes[4], codes[6]);
    const uint32_t odd = lowest_bytes(codes[1], codes[3], codes[5], codes[7]);
    return (even & 0x0f0f0f0fu) | (odd & 0x0f0f0f0fu) << 4;
  }
}

// What a kernel knows beside the block: of lut4.
struct Lookup {
  Table::Kind kind;
  const Table* table;
  float per_value;  // cells
};

// The codes of kCount elements, kCode's bytes in words; kModerate is that of the block.
template <class T, Element kCode, int kCount, bool kModerate>
__device__ __forceinline__ auto encode(const Block& b, const Piece<T, kCount>& piece, const Lookup& look) {
  const auto divided = [&](float t) {
    if constexpr (!kModerate) return __fdiv_rn(t, b.divisor);
    const float q = __fmul_rn(t, b.factor);
    return __fmaf_rn(-__fmaf_rn(q, b.divisor, -t), b.factor, q);
  };
  const auto multiplied = [&](float x) { return __fmul_rn(kModerate ? x : __fmul_rn(x, b.lift), b.factor); };

  if constexpr (kCode == Element::int4) {
    const bool asymmetric = b.is_asymmetric;
    Words<1> word;
    uint32_t codes[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = element<T>(piece.w, i);
      if constexpr (kModerate) {
        codes[i] = __float_as_uint(__fadd_rn(divided(__fsub_rn(x, b.low)), kMagic));
      } else {
        const float step = __fmul_rn(b.divisor, b.lift), low = __fmul_rn(b.low, b.lift);
        const float q = __fdiv_rn(__fsub_rn(__fmul_rn(x, b.lift), low), step);
        codes[i] = __float_as_uint(__fadd_rn(asymmetric ? fminf(fmaxf(q, 0), 15) : fminf(fmaxf(q, -8), 7), kMagic));
      }
    }
    if (kModerate && !asymmetric) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) codes[i] = __float_as_uint(fminf(__uint_as_float(codes[i]), kMagic + 7));
    }
    word.w[0] = b.is_flat ? 0 : nibbles<kCount>(codes) ^ (asymmetric ? 0x88888888u : 0);
    return word;
  } else if constexpr (kCode == Element::lut4) {
    Words<1> word;
    uint32_t codes[kCount];
    float v[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = multiplied(element<T>(piece.w, i));
    if (look.kind == Table::kE2m1) {
      // Codes of magnitudes are the least of three straight lines, each rounded once.
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float m = fabsf(v[i]);
        const float upper = fminf(__fmaf_rn(m, 0.5f, kMagic + 4), kMagic + 7);
        codes[i] = __float_as_uint(fminf(fminf(__fmaf_rn(m, 2, kMagic), __fadd_rn(m, kMagic + 2)), upper));
        if constexpr (kCount == 2) codes[i] |= __float_as_uint(v[i]) >> 31 << 3;
      }
      word.w[0] = nibbles<kCount>(codes);
      if constexpr (kCount == 8) {
        uint32_t f[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) f[i] = __float_as_uint(v[i]);
        const uint32_t even = highest_bytes(f[0], f[2], f[4], f[6]), odd = highest_bytes(f[1], f[3], f[5], f[7]);
        word.w[0] |= (even & 0x80808080u) >> 4 | (odd & 0x80808080u);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (look.kind == Table::kByCells) {
          const uint2 cell = look.table->cells[__float_as_uint(__fmaf_rn(v[i], look.per_value, kMagic)) & 31];
          codes[i] = v[i] > __uint_as_float(cell.x) ? cell.y >> 8 : cell.y;
        } else {
          int place = 0;
#pragma unroll 1  // tables of this kind are rare, and code that is not run still has to be read past
          for (int j = 0; j < 15; ++j) {
            const float border = look.table->borders[j];
            const int tie = look.table->ties[j];
            place += v[i] > border || (v[i] == border && (tie == Table::kUp || (tie == Table::kBySign && !signbit(v[i]))));
          }
          codes[i] = look.table->codes[place];
        }
      }
      word.w[0] = nibbles<kCount>(codes);
    }
    return word;
  } else {
    constexpr float kLimit = quantize::kLimit<kCode>;
    Words<(kCount + 3) / 4> words;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float q[4] = {};
#pragma unroll
      for (int j = 0; j < 4 && j < kCount; ++j) {
        const float x = element<T>(piece.w, i + j);
        if (b.divisor != 0)
          q[j] = kModerate ? divided(x) : fminf(fmaxf(divided(x), -kLimit), kLimit);
        else
          q[j] = fminf(fmaxf(multiplied(x), -kLimit), kLimit);
      }
      words.w[i / 4] = quantize::encode<kCode>(q);
    }
    return words;
  }
}

// Elements of `code` before they meet a scale: kCount of them from where they lie.
template <Element kCode, int kCount>
__device__ __forceinline__ void decode(const void* codes, int64_t piece, const float* table, float (&values)[kCount]) {
  if constexpr (kCode == Element::int4 || kCode == Element::lut4) {
    const uint32_t word = kCount == 8 ? static_cast<const uint32_t*>(codes)[piece] : static_cast<const uint8_t*>(codes)[piece];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = kCode == Element::int4 ? nibble(word, i) : table[word >> 4 * i & 15];
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t byte = static_cast<const uint8_t*>(codes)[piece * kCount + i];
      if constexpr (kCode == Element::int8)
        values[i] = static_cast<float>(static_cast<int8_t>(byte));
      else if constexpr (kCode == Element::e4m3)
        values[i] = float_of_e4m3(byte);
      else
        values[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(byte << 8)));
    }
  }
}

}  // namespace aoext::cuda::weights
