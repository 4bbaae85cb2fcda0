// The tinygemm layout in ATen's terms: bytes and their places.
//
// Packed, a block of 32 k of 8 rows is 32 lanes × one int32, four bytes on every machine that PyTorch runs on:
// byte 2·h + b of lane 4·g + t holds, low nibble first, k = 8·p + 2·t + h of row g for p = 2·b and 2·b + 1.
// As rows it is 16 bytes of each row, byte 4·p + t, the even k in the high nibble.
#pragma once

#include "generic/row_blocks.h"

namespace aoext::generic::int4pack {

inline Tensor permute(const Tensor& t, const std::vector<int64_t>& order) { return call("aten::permute", "", t, order); }

inline Tensor binary(const char* op, const Tensor& t, int64_t constant) {
  return call(op, "Tensor", t, aten::scalar_like(static_cast<double>(constant), t.scalar_type(), t));
}

inline Tensor high_nibble(const Tensor& bytes) { return binary("aten::bitwise_right_shift", bytes, 4); }
inline Tensor low_nibble(const Tensor& bytes) { return binary("aten::bitwise_and", bytes, 0x0f); }
inline Tensor to_high_nibble(const Tensor& nibbles) { return binary("aten::bitwise_left_shift", nibbles, 4); }

}  // namespace aoext::generic::int4pack
