// Rows of plain int4: nibbles to floats or bfloat16, and what zero points leave within the weights (cpu/zero_points.h).
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kNibbles = 32;  // of 16 bytes, which vectors unpack at a time

// n elements of a group, a multiple of kNibbles, as q · s + z.
inline void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, float* out) {
  for (int64_t k = 0; k < n; k += kNibbles) {
    int8_t q[kNibbles];
    unpack_nibbles(packed + k / 2, q);
    for (int64_t i = 0; i < kNibbles; i += kFloats) store(out + k + i, floats_at<Element::int8>(q + i) * s + z);
  }
}

template <class T>
inline void dequantize_int4_as(const Int4Row& row, int64_t begin, int64_t n, T* out) {
  const uint8_t* const packed = row.packed + begin / 2;
  int64_t g = begin / row.group_size, left = row.group_size - begin % row.group_size;  // of the group in hand
  if (row.group_size % kNibbles == 0 && begin % kNibbles == 0) {
    for (int64_t i = 0; i < n; ++g, left = row.group_size) {
      const int64_t count = left < n - i ? left : n - i;
      dequantize_group(packed + i / 2, count, row.scale[g * kPanel], row.zero_point[g * kPanel], out + i);
      i += count;
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int nibble = i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
    const float value = static_cast<float>(sign_extend(nibble)) * row.scale[g * kPanel] + row.zero_point[g * kPanel];
    if constexpr (sizeof(T) == 4)
      out[i] = value;
    else
      out[i] = float_to_bf16(value);
    if (--left == 0) {
      ++g;
      left = row.group_size;
    }
  }
}

inline bool has_wide_zero_points(const float* scale, const float* zero_point, float reach, int64_t groups) {
  F32 widest = {};
  for (int64_t i = 0; i < groups * kPanel; i += kFloats) {
    const F32 beyond = magnitude(load<F32>(zero_point + i)) - reach * magnitude(load<F32>(scale + i));
    widest = beyond > widest ? beyond : widest;
  }
  bool wide = false;
  for (int i = 0; i < kFloats; ++i) wide |= widest[i] > 0;
  return wide;
}

// The weights' part is 2 reach |scale| − |zero_point|, or nothing: the closer to `reach` scales, the closer to 0 is a weight that
// must not grow.
inline void split_zero_points(const float* scale, float* zero_point, float reach, int64_t groups, float* beside) {
  for (int64_t i = 0; i < groups * kPanel; i += kFloats) {
    const F32 zero = load<F32>(zero_point + i), size = magnitude(zero), most = reach * magnitude(load<F32>(scale + i));
    const F32 left = 2 * most - size, positive = left > 0 ? left : F32{};
    const F32 within = size > most ? (F32)((U32)positive | ((U32)zero & kSign)) : zero;
    store(zero_point + i, within);
    store(beside + i, size > most ? zero - within : F32{});
  }
}

inline void shift_zero_points(const float* scale, float* zero_point, float offset, int64_t groups) {
  for (int64_t i = 0; i < groups * kPanel; i += kFloats)
    store(zero_point + i, load<F32>(zero_point + i) - offset * load<F32>(scale + i));
}

inline void dequantize_int4(const Int4Row& row, int64_t begin, int64_t n, Element to, void* out) {
  if (to == Element::bf16) return dequantize_int4_as(row, begin, n, static_cast<uint16_t*>(out));
  dequantize_int4_as(row, begin, n, static_cast<float*>(out));
}

}  // namespace
}  // namespace aoext::cpu
