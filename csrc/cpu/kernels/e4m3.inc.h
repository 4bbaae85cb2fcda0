// e4m3 for few rows of x (weights_8bit.inc.h): halves by their bits, whose factor and whose NaN wait for the sums.
#pragma once

#include "cpu/kernels/weights_8bit.inc.h"

namespace aoext::cpu {
namespace {

// ---- what an instruction set defines -------------------------------------------------------------------

// Two vectors of e4m3 as floats, to be multiplied by 256; NaN becomes a number. And kExactE4m3 of them with NaN kept.
//
//   void load_e4m3(const void* p, F32* out)
//   void load_e4m3_and_nan(const void* p, F32* out)

// The larger one of each two bytes, unsigned; whether a byte is among them.
Bytes largest_bytes(Bytes a, Bytes b);
bool any_byte_is(Bytes bytes, uint8_t byte);

// ---- loaders -------------------------------------------------------------------------------------------

// e4m3's is 127, of either sign: 254 once doubled, above all others.
template <>
struct SeenNan<Element::e4m3> {
  Bytes most = {};
  void see(const char* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4 * kFloats) {
      const Bytes values = load<Bytes>(p + i), twice = values + values;
      most = largest_bytes(most, twice);
    }
  }
  float or_nan(float sum) const {
    const bool nan = any_byte_is(most, 0xfe);
    return nan ? from_bits(0x7fc00000u) : sum;
  }
};

template <>
struct Weights8Bit<Element::e4m3> {
  static constexpr int kVectors = 2;
  static constexpr float kFactor = 256;
  using Nan = SeenNan<Element::e4m3>;
  static void load(const void* p, F32 (&out)[kVectors]) { load_e4m3(p, out); }
};

template <>
struct Exact<Element::e4m3> {
  static constexpr int kVectors = kExactE4m3;
  static constexpr float kFactor = 256;
  static void load(const void* p, F32 (&out)[kVectors]) { load_e4m3_and_nan(p, out); }
};

}  // namespace
}  // namespace aoext::cpu
