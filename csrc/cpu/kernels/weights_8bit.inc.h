// 8-bit weight formats, known late or as the loaders of gemv_8bit.inc.h. A new one (8 bits with a scale a block) is a loader of
// its own beside Weights8Bit.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

// The same of a type that is known late.
inline F32 floats_at(Element type, const char* p) {
  if (type == Element::bf16) return floats_at<Element::bf16>(p);
  if (type == Element::fp16) return floats_at<Element::fp16>(p);
  return floats_at<Element::fp32>(p);
}

// f(OfType<…>()) for an 8-bit type that is known late.
template <Element kType>
struct OfType {
  static constexpr Element type = kType;
};

template <class F>
inline void with_8bit_type(Element type, const F& f) {
  if (type == Element::int8) return f(OfType<Element::int8>());
  if (type == Element::e4m3) return f(OfType<Element::e4m3>());
  f(OfType<Element::e5m2>());
}

// Whether there was a NaN among the bytes seen.
template <Element kType>
struct SeenNan {
  void see(const char*, int64_t) {}
  float or_nan(float sum) const { return sum; }
};

// Values as products take them: kVectors vectors at a time, to be multiplied by kFactor. NaN may be another number: what Nan has
// seen it puts into the sum.
template <Element kType>
struct Weights8Bit {
  static constexpr int kVectors = 1;
  static constexpr float kFactor = 1;
  using Nan = SeenNan<kType>;
  static void load(const void* p, F32 (&out)[kVectors]) { out[0] = floats_at<kType>(p); }
};

// The next line of such weights: bytes of int8 become floats at the pace of memory.
template <class Loader>
inline void fetch_8bit_weights(const void* p) {
  if constexpr (__is_same(Loader, Weights8Bit<Element::int8>))
    fetch_weights(p);
  else
    fetch_weights_to_convert(p);
}

// The same with NaN in its place.
template <Element kType>
struct Exact {
  static constexpr int kVectors = 1;
  static constexpr float kFactor = 1;
  static void load(const void* p, F32 (&out)[kVectors]) { out[0] = floats_at<kType>(p); }
};

}  // namespace
}  // namespace aoext::cpu
