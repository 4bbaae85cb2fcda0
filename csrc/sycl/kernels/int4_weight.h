// int4 weights as operands of the matrix operation, from the 16 bytes of a k-step.
#pragma once

#include "tile.h"

namespace aoext::xpu {

template <int kShift>
inline uint32_t shifted(uint32_t w) {
  if constexpr (kShift >= 0) {
    return w << kShift;
  } else {
    return w >> -kShift;
  }
}

// The offset of q in an operand. A float32 product has none, because its rounding leaves no room for the cancellation.
template <Element kType>
constexpr float kOffset = kType == Element::fp32 ? 0.0f : 24.0f;

// Nibbles J and J + 4 of a dword as two 16-bit floats kOffset + q. For 24 + q, the nibble becomes the
// top of the mantissa of a number in [16, 32), and the exclusive or turns its sign bit into the offset.
template <Element kType, int J>
inline int biased_pair(uint32_t w) {
  if constexpr (kType == Element::fp16) {
    return (shifted<6 - 4 * J>(w) & 0x03C003C0u) ^ 0x4E004E00u;
  } else if constexpr (kType == Element::bf16) {
    return (shifted<3 - 4 * J>(w) & 0x00780078u) ^ 0x41C041C0u;
  } else {
    const uint32_t biased = biased_pair<Element::bf16, J>(w);
    const auto q = [](float value) { return sycl::bit_cast<uint32_t>(value - kOffset<Element::bf16>); };
    return (q(low_half<Element::bf16>(biased)) >> 16) | q(high_half<Element::bf16>(biased));
  }
}

// The weight operands of the two operations of a k-step, from a lane's 16 bytes.
template <Element kType>
inline void unpack(const Vector<uint32_t, 4>& packed, Dwords (&b)[2]) {
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    b[0][d] = biased_pair<kType, 0>(packed[d]);
    b[0][d + 4] = biased_pair<kType, 1>(packed[d]);
    b[1][d] = biased_pair<kType, 2>(packed[d]);
    b[1][d + 4] = biased_pair<kType, 3>(packed[d]);
  }
}

}  // namespace aoext::xpu
