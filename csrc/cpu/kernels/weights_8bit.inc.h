// 8-bit weight formats as the kernels' loaders: what a format brings to the products of few rows of x in float32.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

// The same of a type that is known late.
inline F32 floats_at(Element type, const char* p) {
  if (type == Element::bf16) return floats_at<Element::bf16>(p);
  if (type == Element::f16) return floats_at<Element::f16>(p);
  return floats_at<Element::f32>(p);
}

// f(OfType<…>()) for an 8-bit type that is known late.
template <Element kType>
struct OfType {
  static constexpr Element type = kType;
};

template <class F>
inline void with_8bit_type(Element type, const F& f) {
  if (type == Element::i8) return f(OfType<Element::i8>());
  if (type == Element::e4m3) return f(OfType<Element::e4m3>());
  f(OfType<Element::e5m2>());
}

// 8-bit values as products take them: kVectors vectors at a time, to be multiplied by kFactor; whether NaN is kept.
template <Element kType>
struct Values {
  static constexpr int kVectors = 1;
  static constexpr float kFactor = 1;
  static void load(const void* p, F32 (&out)[kVectors]) { out[0] = floats_at<kType>(p); }
};

// The same with NaN.
template <Element kType>
struct Exact {
  static constexpr int kVectors = 1;
  static constexpr float kFactor = 1;
  static void load(const void* p, F32 (&out)[kVectors]) { out[0] = floats_at<kType>(p); }
};

// Whether there was a NaN among the bytes seen.
template <Element kType>
struct SeenNan {
  void see(const char*, int64_t) {}
  float or_nan(float sum) const { return sum; }
};

}  // namespace
}  // namespace aoext::cpu
