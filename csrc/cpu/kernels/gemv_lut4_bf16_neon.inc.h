// Codes of 4 bits of a table of bfloat16 by few rows of such x: bfdot. 32 codes take 3 instructions to unpack, 8 to look up and 4
// products for a row of x.
#pragma once

#include "cpu/kernels/gemv_blockwise.inc.h"
#include "cpu/kernels/table_planes.inc.h"

namespace aoext::cpu {
namespace {

// A loader (gemv_blockwise.inc.h): a lane adds up a word's weights, two at a time.
struct Lut4AsBf16 {
  using Operand = uint16_t;
  using Vector = uint16x8_t;
  static constexpr int kVectors = 4, kUnit = 8 * kFloats, kBytes = sizeof(U32);
  struct Unit {
    Vector values[2][kVectors / 2];  // of even codes, of odd ones: the first halves of words, the second ones
  };
  TablePlanes<2> table;

  Unit unit(const char* from) const {
    static constexpr uint8_t kHalves[] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    const uint8x16_t bytes = vqtbl1q_u8(load<uint8x16_t>(from), load<uint8x16_t>(kHalves));
    Unit unit;
    table.halves(vandq_u8(bytes, vdupq_n_u8(15)), unit.values[0]);
    table.halves(vshrq_n_u8(bytes, 4), unit.values[1]);
    return unit;
  }
  Vector vector(const Unit& unit, int i) const { return unit.values[i / 2][i % 2]; }
  static F32 multiply_add(F32 sums, Vector w, const Operand* x) {
    return (F32)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)w, load<bfloat16x8_t>(x));
  }
};

void dot_lut4_bf16(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                   float (*acc)[kPanel]) {
  dot_units(Lut4AsBf16{TablePlanes<2>(w.table)}, x, x_stride, M, w, N, K, acc);
}

void pack_x_lut4_bf16(Element from, const void* row, int64_t n, void* out) {
  constexpr int64_t kUnit = Lut4AsBf16::kUnit, kOfWord = 8;
  const int64_t bytes = from == Element::fp32 ? 4 : 2;
  uint16_t* to = static_cast<uint16_t*>(out);
  for (int64_t begin = 0; begin < n; begin += kUnit) {
    uint16_t values[kUnit] = {};
    to_bf16(from, static_cast<const char*>(row) + begin * bytes, values, n - begin < kUnit ? n - begin : kUnit);
    for (int64_t odd = 0; odd < 2; ++odd)
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t word = 0; word < kFloats; ++word)
          for (int64_t i = 0; i < 2; ++i) *to++ = values[kOfWord * word + 4 * half + 2 * i + odd];
  }
}

constexpr GemvBlockwise kGemvLut4Bf16{.operand_bytes = sizeof(uint16_t), .pack_x = pack_x_lut4_bf16, .dot = dot_lut4_bf16};

}  // namespace
}  // namespace aoext::cpu
