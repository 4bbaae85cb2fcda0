// The matrix operation of a sub-group, on the matrix engine or on the lanes.
//
//   acc[r][n] += sum over i = 0..15 of a[r][i] · b[i][n]      16-bit floats (float32 for a), float32 acc
//   acc[r][n] += sum over i = 0..31 of a[r][i] · b[i][n]      int8, int32 acc
//
// Lane n holds column n of acc and of b. b is 8 dwords a lane: dword d holds i = 2d (low half) and i = 2d + 1, or the
// bytes i = 4d to 4d + 3. Lane i holds a[r][i] of each row of a, or the pair of bytes a[r][2i], a[r][2i + 1].
//
// With AOEXT_DPAS the operation is one instruction of the matrix engine (DPAS: R rows by 16 columns). Without, each
// value of a is broadcast from its lane to all lanes, which multiply; that runs on any device with sub-groups of 16.
// float32 is always multiplied so.
#pragma once

#include "kernel.h"
#include "numeric.h"
#include "vector.h"

namespace aoext::xpu {

using Dwords = Vector<int, 8>;  // of b

template <Element kType, int R>
struct Tile;  // Acc, A; multiply(acc, a, b); add_row_sums(acc, a) and, at the end, row_sums(acc): a multiplied by ones

// The values of b's dword d as floats.
template <Element kType>
inline float low_half(uint32_t dword) {
  if constexpr (kType == Element::fp16) {
    return fp16_to_float(static_cast<uint16_t>(dword));
  } else {
    return sycl::bit_cast<float>(dword << 16);
  }
}

template <Element kType>
inline float high_half(uint32_t dword) {
  if constexpr (kType == Element::fp16) {
    return fp16_to_float(static_cast<uint16_t>(dword >> 16));
  } else {
    return sycl::bit_cast<float>(dword & 0xFFFF0000u);
  }
}

// The operand a from R rows of 16 values, stored one row after the other: each lane loads its value of every row.
template <int R>
inline Vector<short, R> load_rows(const uint16_t* x, int lane) {
#ifdef AOEXT_DPAS
  using Bits = Vector<uint16_t, R>;
  const auto* const global = (const __attribute__((opencl_global)) uint16_t*)(x);
  return sycl::bit_cast<Vector<short, R>>(__spirv_SubgroupBlockReadINTEL<Bits>(global));
#else
  Vector<short, R> rows;
#pragma unroll
  for (int r = 0; r < R; ++r) set<R>(rows, r, static_cast<short>(x[r * kLanes + lane]));
  return rows;
#endif
}

// What a lane holds of a row of a, as a float.
template <Element kType, class T>
inline float a_to_float(T a) {
  if constexpr (kType == Element::fp32) {
    return a;
  } else if constexpr (kType == Element::fp16) {
    return fp16_to_float(static_cast<uint16_t>(a));
  } else {
    return bf16_to_float(static_cast<uint16_t>(a));
  }
}

// The operation without a matrix engine. The b of a float32 product is bfloat16.
template <Element kType, int R>
struct LaneTile {
  using Acc = Vector<float, R>;
  using A = Vector<std::conditional_t<kType == Element::fp32, float, short>, R>;

  LaneTile(int /*lane*/, int /*K*/) {}

  static void multiply(Acc& acc, const A& a, const Dwords& b) {
    for (int d = 0; d < 8; ++d) {
      const float b0 = low_half<kType>(b[d]), b1 = high_half<kType>(b[d]);
      for (int r = 0; r < R; ++r) {
        const float value = a_to_float<kType>(get<R>(a, r));
        set<R>(acc, r, get<R>(acc, r) + lane_value(value, 2 * d) * b0 + lane_value(value, 2 * d + 1) * b1);
      }
    }
  }

  static void add_row_sums(Acc& acc, const A& a) {
    for (int r = 0; r < R; ++r) set<R>(acc, r, get<R>(acc, r) + a_to_float<kType>(get<R>(a, r)));  // partial: of this lane
  }

  static Acc row_sums(Acc acc) {
    for (int r = 0; r < R; ++r) set<R>(acc, r, sycl::reduce_over_group(this_sub_group(), get<R>(acc, r), sycl::plus<float>()));
    return acc;
  }
};

template <int R>
struct LaneTile<Element::int8, R> {
  using Acc = Vector<int, R>;
  using A = Vector<short, R>;

  LaneTile(int /*lane*/, int /*K*/) {}

  static void multiply(Acc& acc, const A& a, const Dwords& b) {
    for (int d = 0; d < 8; ++d) {
      for (int r = 0; r < R; ++r) {
        const int low = lane_value(get<R>(a, r), 2 * d), high = lane_value(get<R>(a, r), 2 * d + 1);
        int sum = get<R>(acc, r);
        for (int i = 0; i < 2; ++i) {
          sum += static_cast<int8_t>(low >> (8 * i)) * static_cast<int8_t>(b[d] >> (8 * i));
          sum += static_cast<int8_t>(high >> (8 * i)) * static_cast<int8_t>(b[d] >> (8 * i + 16));
        }
        set<R>(acc, r, sum);
      }
    }
  }

  static void add_row_sums(Acc& acc, const A& a) {
    for (int r = 0; r < R; ++r) {
      const int pair = get<R>(a, r);
      set<R>(acc, r, get<R>(acc, r) + static_cast<int8_t>(pair) + static_cast<int8_t>(pair >> 8));
    }
  }

  static Acc row_sums(Acc acc) {
    for (int r = 0; r < R; ++r) set<R>(acc, r, sycl::reduce_over_group(this_sub_group(), get<R>(acc, r), sycl::plus<int>()));
    return acc;
  }
};

#ifdef AOEXT_DPAS

// Built-ins of Intel's graphics compiler, {type of a and b}_{dwords of b}_{rows}. A misspelt one compiles to
// nothing; `make isa` counts the instructions.
#define AOEXT_DPAS_ROWS(R)                                                                                                      \
  SYCL_EXTERNAL extern "C" Vector<float, R> __builtin_IB_sub_group16_fdpas_f_f_bf_bf_8_##R(Vector<float, R>, Vector<short, R>,  \
                                                                                           Dwords);                             \
  SYCL_EXTERNAL extern "C" Vector<float, R> __builtin_IB_sub_group16_fdpas_f_f_hf_hf_8_##R(Vector<float, R>, Vector<short, R>,  \
                                                                                           Dwords);                             \
  SYCL_EXTERNAL extern "C" Vector<int, R> __builtin_IB_sub_group16_idpas_s8_s8_8_##R(Vector<int, R>, Vector<short, R>, Dwords); \
  inline Vector<float, R> dpas_bf16(Vector<float, R> acc, Vector<short, R> a, const Dwords& b) {                                \
    return __builtin_IB_sub_group16_fdpas_f_f_bf_bf_8_##R(acc, a, b);                                                           \
  }                                                                                                                             \
  inline Vector<float, R> dpas_fp16(Vector<float, R> acc, Vector<short, R> a, const Dwords& b) {                                \
    return __builtin_IB_sub_group16_fdpas_f_f_hf_hf_8_##R(acc, a, b);                                                           \
  }                                                                                                                             \
  inline Vector<int, R> dpas_int8(Vector<int, R> acc, Vector<short, R> a, const Dwords& b) {                                    \
    return __builtin_IB_sub_group16_idpas_s8_s8_8_##R(acc, a, b);                                                               \
  }
AOEXT_DPAS_ROWS(1)
AOEXT_DPAS_ROWS(2)
AOEXT_DPAS_ROWS(4)
AOEXT_DPAS_ROWS(8)
#undef AOEXT_DPAS_ROWS

template <Element kType, int R>
struct Tile {
  using Acc = Vector<float, R>;
  using A = Vector<short, R>;

  int ones;
  // Ones that the compiler must take to differ by lane (K is never negative): it would rebuild a uniform
  // vector before each use.
  Tile(int lane, int K) : ones(K < 0 ? lane : kType == Element::bf16 ? 0x3F803F80 : 0x3C003C00) {}

  static void multiply(Acc& acc, const A& a, const Dwords& b) {
    acc = kType == Element::bf16 ? dpas_bf16(acc, a, b) : dpas_fp16(acc, a, b);
  }

  void add_row_sums(Acc& acc, const A& a) const { multiply(acc, a, Dwords(ones)); }
  static Acc row_sums(const Acc& acc) { return acc; }
};

template <int R>
struct Tile<Element::int8, R> {
  using Acc = Vector<int, R>;
  using A = Vector<short, R>;

  int ones;
  Tile(int lane, int K) : ones(K < 0 ? lane : 0x01010101) {}

  static void multiply(Acc& acc, const A& a, const Dwords& b) { acc = dpas_int8(acc, a, b); }

  void add_row_sums(Acc& acc, const A& a) const { multiply(acc, a, Dwords(ones)); }
  static Acc row_sums(const Acc& acc) { return acc; }
};

template <int R>
struct Tile<Element::fp32, R> : LaneTile<Element::fp32, R> {
  using LaneTile<Element::fp32, R>::LaneTile;
};

#else

template <Element kType, int R>
struct Tile : LaneTile<kType, R> {
  using LaneTile<kType, R>::LaneTile;
};

#endif

}  // namespace aoext::xpu
