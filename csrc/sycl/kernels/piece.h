// A piece: kCount neighbouring elements of a row as floats, either 8, by aligned loads and stores, or 1.
//
// The element type in memory is a uniform run-time argument, so a branch costs a scalar compare, and the code around it
// exists once for all types.
#pragma once

#include "numeric.h"
#include "vector.h"

namespace aoext::xpu {

template <int kCount>
using Piece = Vector<float, kCount>;

// Piece i of an array of bf16, fp16 or fp32; one of 8 elements lies at a 16-byte boundary.
template <int kCount>
inline Piece<kCount> load_piece(const void* data, int64_t i, Element type) {
  if constexpr (kCount == 1) {
    return load_float(data, i, type);
  } else {
    using Quad = Vector<float, 4>;
    Piece<kCount> piece;
    if (type == Element::fp32) {
      const Quad low = static_cast<const Quad*>(data)[2 * i], high = static_cast<const Quad*>(data)[2 * i + 1];
#pragma unroll
      for (int j = 0; j < 4; ++j) piece[j] = low[j], piece[j + 4] = high[j];
      return piece;
    }
    const auto dwords = static_cast<const Vector<uint32_t, 4>*>(data)[i];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const auto bits = static_cast<uint16_t>(j % 2 == 0 ? dwords[j / 2] : dwords[j / 2] >> 16);
      piece[j] = type == Element::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
    }
    return piece;
  }
}

// Rounds a piece of 8 elements to one at a 16-byte boundary, in the lanes that are `inside`: a condition around the whole
// call would turn its uniform branches into masks.
inline void store_piece(void* data, const Piece<8>& piece, Element type, bool inside) {
  const auto pairs = [&](const auto& round) {
    Vector<uint32_t, 4> dwords;
#pragma unroll
    for (int j = 0; j < 4; ++j) dwords[j] = uint32_t{round(piece[2 * j])} | uint32_t{round(piece[2 * j + 1])} << 16;
    if (inside) *static_cast<Vector<uint32_t, 4>*>(data) = dwords;
  };
  if (type == Element::fp32) {
    using Quad = Vector<float, 4>;
    const Quad low{piece[0], piece[1], piece[2], piece[3]}, high{piece[4], piece[5], piece[6], piece[7]};
    if (inside) static_cast<Quad*>(data)[0] = low, static_cast<Quad*>(data)[1] = high;
  } else if (type == Element::bf16) {
    pairs([](float value) { return float_to_bf16(value); });
  } else {
    pairs([](float value) { return float_to_fp16(value); });
  }
}

}  // namespace aoext::xpu
