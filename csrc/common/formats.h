// The number formats of the contract: which dtypes play which part, and the constants of quantisation.
#pragma once

#include "common/torch_api.h"

namespace aoext {

// Inputs, scales, biases and results.
inline bool is_high_precision(ScalarType t) {
  return t == ScalarType::BFloat16 || t == ScalarType::Half || t == ScalarType::Float;
}

inline bool is_float8(ScalarType t) { return t == ScalarType::Float8_e4m3fn || t == ScalarType::Float8_e5m2; }

inline bool is_8bit(ScalarType t) { return t == ScalarType::Char || is_float8(t); }

// Scales of blocks: float32, bfloat16 and float16, powers of two as float8_e8m0fnu or their exponents as uint8, and
// float8_e4m3fn.
inline bool is_block_scale(ScalarType t) {
  return is_high_precision(t) || t == ScalarType::Float8_e8m0fnu || t == ScalarType::Byte || t == ScalarType::Float8_e4m3fn;
}

// The largest magnitude that quantize_rowwise maps a row's absmax to.
inline float quantized_max(ScalarType t) {
  return t == ScalarType::Char ? 127.0f : t == ScalarType::Float8_e4m3fn ? 448.0f : 57344.0f;
}

}  // namespace aoext
