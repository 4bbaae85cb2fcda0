// Dynamic quantisation of one row, block by block: a scale, then its codes while the block is in cache.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

// The largest magnitude of n floats of whatever format, as its bits: they order as magnitudes do, with NaN above infinity.
template <class Bits>
inline Bits largest(const void* row, int64_t n) {
  constexpr Bits kMagnitudes = static_cast<Bits>(~Bits{0}) >> 1;
  const char* const source = static_cast<const char*>(row);
  Bits absmax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Bits magnitude = load<Bits>(source + i * int64_t{sizeof(Bits)}) & kMagnitudes;
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  return absmax;
}

inline float scale_for(float absmax, float quantized_max) {
  if (bits(absmax) >= kInfinity) return from_bits(0x7fc00000u);
  if (absmax == 0) return 1.0f;
  const float scale = absmax / quantized_max;
  const float smallest_normal = from_bits(0x00800000u);
  return scale < smallest_normal ? smallest_normal : scale;
}

// x / scale as IEEE rounds it.
struct Ratio {
  F32 scale;
  explicit Ratio(float scale_) : scale(broadcast(scale_)) {}
  F32 operator()(F32 x) const { return x / scale; }
};

// The same by the scale's reciprocal and one correction, in less time. Right for all numerators and divisors
// (tools/division_cases.cpp) as long as nothing leaves the range of normal floats: where the scale is moderate, for all x but
// those which every format rounds to zero.
struct Corrected {
  F32 scale, reciprocal;
  explicit Corrected(float scale_) : scale(broadcast(scale_)), reciprocal(1.0f / scale) {}
  F32 operator()(F32 x) const {
    const F32 q = x * reciprocal;
    return multiply_add(-multiply_add(q, scale, -x), reciprocal, q);
  }
  static bool serves(float scale) { return kFused && scale > 0x1p-60f && scale < 0x1p60f; }
};

// Codes of numbers that a scale has brought into the format's range, give or take a rounding. What they return has further bits
// above the code's.

struct Int8 {
  static constexpr bool kSigned = false;  // the code has its sign already
  // Ties to even by the ulp of 1.5 · 2²³.
  static U32 code(F32 f) { return (U32)(f + 12582912.0f); }
};

// kMantissa bits are kept, ties to even: adding a float whose ulp is the step of f's binade rounds to it and counts the steps.
// Below 2^kMinExponent the step is constant. A binade further on is 2^kMantissa codes further.
template <int kMantissa, int kMinExponent>
struct Float8 {
  static constexpr bool kSigned = true;  // codes of magnitudes
  static U32 code(F32 f) {
    constexpr int kDrop = 23 - kMantissa;
    constexpr int32_t kSmall = (127 + kMinExponent) << 23;
    const I32 exponent = (I32)((U32)f & kInfinity), binade = exponent > kSmall ? exponent : I32{} + kSmall;
    // The code of kSmall's binade comes off by the anchor's last bits: it is even, which ties need.
    const I32 anchor = binade + ((kDrop << 23) + (-(kSmall >> kDrop) & 0xff));
    return (U32)((I32)((F32)((U32)f & kMagnitude) + (F32)anchor) + (binade >> kDrop));
  }
};

// The codes of quotient(x), a byte each.
template <Element kFrom, class Format, class Quotient>
inline void quantize(const char* row, int64_t n, const Quotient& quotient, char* out, const Format& format = {}) {
  constexpr int64_t kStep = 4 * kFloats, kBytes = kFrom == Element::fp32 ? 4 : 2;
  const auto step = [&](const char* from, char* to) {
    F32 x[4];
    U32 codes[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = floats_at<kFrom>(from + i * kFloats * kBytes);
      codes[i] = format.code(quotient(x[i]));
    }
    store_codes<Format::kSigned>(codes, x, to);
  };
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    // The next row, which is scanned when this one is done: memory works meanwhile.
    for (int64_t line = 0; line < kStep * kBytes; line += kLine) __builtin_prefetch(row + (n + i) * kBytes + line);
    step(row + i * kBytes, out + i);
  }
  if (i < n) {
    char rest[kStep * kBytes] = {}, codes[kStep];
    memcpy(rest, row + i * kBytes, static_cast<size_t>((n - i) * kBytes));
    step(rest, codes);
    memcpy(out + i, codes, static_cast<size_t>(n - i));
  }
}

template <Element kFrom, class Format>
inline void quantize(const char* row, int64_t n, float scale, char* out) {
  if (Corrected::serves(scale)) return quantize<kFrom, Format>(row, n, Corrected(scale), out);
  quantize<kFrom, Format>(row, n, Ratio(scale), out);
}

// A positive normal number up to the next power of two: its bits without a mantissa are the power below it.
inline float power_of_two_from(float scale) {
  const uint32_t below = bits(scale) & kInfinity;
  return from_bits(below == bits(scale) ? below : below + (1u << 23));
}

template <Element kFrom>
inline float quantize_block(const char* row, int64_t n, bool power_of_two, Element to, float quantized_max, char* out) {
  float absmax;
  if constexpr (kFrom == Element::fp32)
    absmax = from_bits(largest<uint32_t>(row, n));
  else
    absmax = (kFrom == Element::bf16 ? bf16_to_float : f16_to_float)(largest<uint16_t>(row, n));
  float scale = scale_for(absmax, quantized_max);
  if (power_of_two && scale == scale && absmax > 0) scale = power_of_two_from(scale);
  if (scale != scale) {
    memset(out, 0, static_cast<size_t>(n));
  } else if (to == Element::int8) {
    quantize<kFrom, Int8>(row, n, scale, out);
  } else if (to == Element::e4m3) {
    quantize<kFrom, Float8</*kMantissa=*/3, /*kMinExponent=*/-6>>(row, n, scale, out);
  } else {
    quantize<kFrom, Float8</*kMantissa=*/2, /*kMinExponent=*/-14>>(row, n, scale, out);
  }
  return scale;
}

template <Element kFrom>
inline void quantize_blocks(const char* row, int64_t n, int64_t block, bool power_of_two, Element to, float quantized_max,
                            char* out, float* scales) {
  constexpr int64_t kBytes = kFrom == Element::fp32 ? 4 : 2;
  for (int64_t k = 0; k < n; k += block)
    *scales++ = quantize_block<kFrom>(row + k * kBytes, n - k < block ? n - k : block, power_of_two, to, quantized_max, out + k);
}

void quantize_row(Element from, const void* row, int64_t n, int64_t block, bool power_of_two, Element to, float quantized_max,
                  void* out, float* scales) {
  const char* const in = static_cast<const char*>(row);
  char* const codes = static_cast<char*>(out);
  if (from == Element::bf16) return quantize_blocks<Element::bf16>(in, n, block, power_of_two, to, quantized_max, codes, scales);
  if (from == Element::fp16) return quantize_blocks<Element::fp16>(in, n, block, power_of_two, to, quantized_max, codes, scales);
  quantize_blocks<Element::fp32>(in, n, block, power_of_two, to, quantized_max, codes, scales);
}

}  // namespace
}  // namespace aoext::cpu
