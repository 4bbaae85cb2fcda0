// 8-bit weights and activations as 16-bit floats, in registers, two at a time.
//
// decoded(code) · factor = value, exactly for every finite code; NaN stays NaN, and e5m2's Inf stays Inf.
//
//   e5m2   is the upper byte of an fp16
//   e4m3   the same bits, the exponent 1 bit further down: an fp16 2^8 too small, except that the NaN code (all
//          ones) has to be lifted to fp16's highest exponent
//   int8   has at most 8 significant bits, which bf16 and fp16 hold
//
// Small codes are subnormal as fp16, which arithmetic keeps and the matrix engine may not: they become bf16, or are
// multiplied by 2^8 first. Neither serves e5m2 as fp16, whose range is all of fp16's: rowwise_tile.cpp
// multiplies that as bf16.
#pragma once

#include "numeric.h"
#include "vector.h"

namespace aoext::xpu {

// The factor of decoded_pair<kCode, kFloat>, which its caller multiplies by.
template <Element kCode, Element kFloat>
constexpr float kDecodedFactor = kFloat != Element::bf16  ? 1.0f
                                 : kCode == Element::e4m3 ? 256.0f
                                 : kCode == Element::int8 ? 1.0f / 256
                                                          : 1.0f;

// Two float8 in the upper bytes of the halves of a dword, the lower ones being zero, as fp16; e4m3 times 2^-8.
template <Element kCode>
inline uint32_t fp16_pair(uint32_t codes) {
  if constexpr (kCode == Element::e5m2) return codes;
  const uint32_t pair = ((codes >> 1) & 0x3F803F80u) | (codes & 0x80008000u);
  return pair | ((pair + 0x00800080u) & 0x40004000u);
}

inline float e5m2_to_float(uint8_t code) { return fp16_to_float(static_cast<uint16_t>(code << 8)); }

inline float e4m3_to_float(uint8_t code) {
  return fp16_to_float(static_cast<uint16_t>(fp16_pair<Element::e4m3>(static_cast<uint32_t>(code) << 8))) * 256.0f;
}

using Halves = Vector<_Float16, 2>;

inline int packed_bf16(float low, float high) {  // of floats that are bf16 already
  return static_cast<int>((sycl::bit_cast<uint32_t>(low) >> 16) | (sycl::bit_cast<uint32_t>(high) & 0xFFFF0000u));
}

// Bytes J and J + 2 of a dword as the low and the high half of a dword of kFloat, bf16 or fp16.
template <Element kCode, Element kFloat, int J>
inline int decoded_pair(uint32_t codes) {
  if constexpr (kCode == Element::int8 && kFloat == Element::fp16) {
    const uint32_t biased = ((codes >> 8 * J) & 0x00FF00FFu) ^ 0x64806480u;  // 1024 + 128 + code
    return sycl::bit_cast<int>(sycl::bit_cast<Halves>(biased) - Halves(1152));
  }
  const uint32_t upper = (J == 0 ? codes << 8 : codes) & 0xFF00FF00u;
  if constexpr (kCode == Element::int8) {
    return packed_bf16(static_cast<int16_t>(upper), static_cast<int>(upper) >> 16);
  } else {
    const auto pair = sycl::bit_cast<Halves>(fp16_pair<kCode>(upper));
    if constexpr (kFloat == Element::bf16) return packed_bf16(pair[0], pair[1]);
    static_assert(kFloat == Element::bf16 || kCode == Element::e4m3);
    return sycl::bit_cast<int>(pair * Halves(256));
  }
}

}  // namespace aoext::xpu
