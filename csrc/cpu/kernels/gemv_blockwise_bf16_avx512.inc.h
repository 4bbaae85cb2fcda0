// Weights with a scale a block by few rows of x, in bfloat16 where all values are bfloat16 exactly.
//
// 8-bit values come as in gemv_8bit_bf16_avx512.inc.h: 64 of them in 5 instructions (int8: 8) and two products. Codes of 4 bits
// look up 16-bit words: a vector of 128 costs 4 look-ups, 3 shifts and 4 products.
#pragma once

#include "cpu/kernels/gemv_8bit_bf16_avx512.inc.h"
#include "cpu/kernels/gemv_blockwise.inc.h"

namespace aoext::cpu {
namespace {

// What loaders of bfloat16 have in common (gemv_blockwise.inc.h).
struct UnitsOfBf16 {
  using Operand = uint16_t;
  using Vector = __m512i;
  static constexpr int kBytes = kLine;
  static F32 multiply_add(F32 sums, Vector w, const Operand* x) {
    return (F32)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, load<__m512bh>(x));
  }
};

template <Element kType>
struct UnitsOf8Bit : UnitsOfBf16 {
  static constexpr int kUnit = 64, kVectors = 2;
  struct Unit {
    Vector halves[kVectors];
  };
  Unit unit(const char* from) const {
    Unit values;
    values_as_bf16<kType>(load_once<__m512i>(from), values.halves);
    return values;
  }
  Vector vector(const Unit& values, int i) const { return values.halves[i]; }
};

// Nibble i of each 16-bit word looks up; its lane of 32 bits has 8 weights.
struct UnitsOfLut4 : UnitsOfBf16 {
  static constexpr int kUnit = 128, kVectors = 4;
  __m512i table;  // twice: an index has five bits, the fifth another nibble's

  explicit UnitsOfLut4(const float* from) {
    uint16_t values[2 * kFloats];
    for (int i = 0; i < 2 * kFloats; ++i) values[i] = static_cast<uint16_t>(bits(from[i & 15]) >> 16);
    table = load<__m512i>(values);
  }
  using Unit = Vector;
  Unit unit(const char* from) const { return load_once<__m512i>(from); }
  Vector vector(const Unit& words, int i) const {
    constexpr __mmask32 kAll = ~__mmask32{0};
    return _mm512_maskz_permutexvar_epi16(kAll, _mm512_maskz_srli_epi16(kAll, words, static_cast<unsigned>(4 * i)), table);
  }
};

void dot_8bit_blockwise_bf16(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                             float (*acc)[kPanel]) {
  with_8bit_type(w.type, [&](auto of) { dot_units(UnitsOf8Bit<decltype(of)::type>(), x, x_stride, M, w, N, K, acc); });
}

void dot_lut4_bf16(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                   float (*acc)[kPanel]) {
  dot_units(UnitsOfLut4(w.table), x, x_stride, M, w, N, K, acc);
}

void pack_x_lut4_bf16(Element from, const void* row, int64_t n, void* out) {
  constexpr int64_t kUnit = UnitsOfLut4::kUnit, kVectors = UnitsOfLut4::kVectors, kWords = kUnit / kVectors;
  const int64_t bytes = from == Element::fp32 ? 4 : 2;
  uint16_t* const to = static_cast<uint16_t*>(out);
  for (int64_t begin = 0; begin < n; begin += kUnit) {
    uint16_t values[kUnit] = {};
    to_bf16(from, static_cast<const char*>(row) + begin * bytes, values, n - begin < kUnit ? n - begin : kUnit);
    for (int64_t i = 0; i < kVectors; ++i)
      for (int64_t word = 0; word < kWords; ++word) to[begin + i * kWords + word] = values[kVectors * word + i];
  }
}

constexpr GemvBlockwise kGemvBlockwiseBf16{
    .operand_bytes = sizeof(uint16_t), .pack_x = pack_x_bf16, .dot = dot_8bit_blockwise_bf16};
constexpr GemvBlockwise kGemvLut4Bf16{.operand_bytes = sizeof(uint16_t), .pack_x = pack_x_lut4_bf16, .dot = dot_lut4_bf16};

}  // namespace
}  // namespace aoext::cpu
