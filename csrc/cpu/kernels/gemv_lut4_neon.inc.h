// Codes of 4 bits by few rows of x: their values' bytes are looked up for 16 codes at once (table_planes.inc.h). 32 codes take 3
// instructions to unpack and, where values are bfloat16, 16 more, else 24.
#pragma once

#include "cpu/kernels/gemv_blockwise.inc.h"
#include "cpu/kernels/table_planes.inc.h"

namespace aoext::cpu {
namespace {

// A loader (gemv_blockwise.inc.h) in the order of Lut4AsFloats.
template <int kPlanes>
struct Lut4ByPlanes {
  using Operand = float;
  using Vector = F32;
  static constexpr int kVectors = 8, kUnit = kVectors * kFloats, kBytes = sizeof(U32);
  struct Unit {
    F32 values[2][kVectors / 2];  // of even codes, of odd ones
  };
  TablePlanes<kPlanes> table;

  Unit unit(const char* from) const {
    static constexpr uint8_t kBytesInTurn[] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const uint8x16_t bytes = vqtbl1q_u8(load<uint8x16_t>(from), load<uint8x16_t>(kBytesInTurn));
    Unit unit;
    table.floats(vandq_u8(bytes, vdupq_n_u8(15)), unit.values[0]);
    table.floats(vshrq_n_u8(bytes, 4), unit.values[1]);
    return unit;
  }
  Vector vector(const Unit& unit, int i) const { return unit.values[i % 2][i / 2]; }
  static F32 multiply_add(F32 sums, Vector w, const Operand* x) { return sums + load<F32>(x) * w; }
};

void dot_lut4_neon(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K,
                   float (*acc)[kPanel]) {
  using Short = TablePlanes<2>;
  if (Short::serves(w.table)) return dot_units(Lut4ByPlanes<2>{Short(w.table)}, x, x_stride, M, w, N, K, acc);
  dot_units(Lut4ByPlanes<4>{TablePlanes<4>(w.table)}, x, x_stride, M, w, N, K, acc);
}

constexpr GemvBlockwise kGemvLut4Neon{.operand_bytes = sizeof(float), .pack_x = pack_x_lut4, .dot = dot_lut4_neon};

}  // namespace
}  // namespace aoext::cpu
