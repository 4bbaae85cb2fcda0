// Rows of numbers in memory to floats and to bfloat16, and back.
#pragma once

#include "cpu/kernels/scalars.inc.h"
#include "cpu/kernels/weights_8bit.inc.h"

namespace aoext::cpu {
namespace {

template <Element kType, class T, float (*convert)(T)>
inline void weights_to_float(const void* source, float* out, int64_t n) {
  constexpr int kVectors = Exact<kType>::kVectors;
  const T* s = static_cast<const T*>(source);
  int64_t i = 0;
  for (F32 v[kVectors]; i + kVectors * kFloats <= n; i += kVectors * kFloats) {
    Exact<kType>::load(s + i, v);
    for (int j = 0; j < kVectors; ++j) store(out + i + j * kFloats, v[j] * Exact<kType>::kFactor);
  }
  for (; i < n; ++i) out[i] = convert(s[i]);
}

void to_float(Element from, const void* source, float* out, int64_t n) {
  switch (from) {
    case Element::bf16: return row_to_float<uint16_t, bf16_to_float>(source, out, n);
    case Element::fp16: return row_to_float<uint16_t, f16_to_float>(source, out, n);
    case Element::fp32: return row_to_float<float, identity>(source, out, n);
    case Element::int8: return weights_to_float<Element::int8, int8_t, i8_to_float>(source, out, n);
    case Element::e4m3: return weights_to_float<Element::e4m3, uint8_t, e4m3_to_float>(source, out, n);
    case Element::e5m2: return weights_to_float<Element::e5m2, uint8_t, e5m2_to_float>(source, out, n);
    case Element::int32: return row_to_float<int32_t, i32_to_float>(source, out, n);
    case Element::e8m0: return row_to_float<uint8_t, e8m0_to_float>(source, out, n);
    default: return;  // several to a byte: dequantize_int4, dequantize_blockwise
  }
}

// A line every few instructions, far from the next: those that nobody has fetched before are on their way while others are
// converted.
template <Element kFrom>
inline void columns_to_float(const char* source, int64_t stride, int64_t rows, int64_t n, float* out) {
  constexpr int64_t kBytes = kFrom == Element::fp32 ? 4 : 2, kAhead = 32;
  for (int64_t r = 0; r < rows; ++r) {
    const char* const row = source + r * stride;
    for (int64_t i = 0; i < kPanel * kBytes; i += kLine) {
      if (rows > kGroupsAhead) __builtin_prefetch(row + kPanel * kBytes + i, 0, 2);
      if (r + kAhead < rows) __builtin_prefetch(row + kAhead * stride + i, 0, 2);
    }
    if (n == kPanel)
      for (int64_t i = 0; i < kPanel; i += kFloats) store(out + r * kPanel + i, floats_at<kFrom>(row + i * kBytes));
    else
      to_float(kFrom, row, out + r * kPanel, n);
  }
}

inline void columns_to_float(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, float* out) {
  const char* const in = static_cast<const char*>(source);
  if (from == Element::bf16) return columns_to_float<Element::bf16>(in, stride, rows, n, out);
  if (from == Element::fp16) return columns_to_float<Element::fp16>(in, stride, rows, n, out);
  columns_to_float<Element::fp32>(in, stride, rows, n, out);
}

inline int64_t bytes_of(Element e) {
  return e == Element::fp32 || e == Element::int32 ? 4 : e == Element::bf16 || e == Element::fp16 ? 2 : 1;
}

// kPanel rows of n floats as n rows of kPanel, by way of the first cache, kFloats by kFloats: floats(row, k, count, values) gives
// some of one row.
template <class Floats>
inline void transpose_rows(int64_t n, float* out, const Floats& floats) {
  constexpr int64_t kChunk = 64;
  static_assert(kChunk % kFloats == 0);
  float values[kFloats][kChunk] = {};
  for (int64_t k = 0; k < n; k += kChunk)
    for (int64_t row = 0; row < kPanel; row += kFloats) {
      const int64_t count = n - k < kChunk ? n - k : kChunk;
      for (int i = 0; i < kFloats; ++i) floats(row + i, k, count, values[i]);
      for (int64_t j = 0; j < count; j += kFloats) {
        U32 columns[kFloats];
        for (int i = 0; i < kFloats; ++i) columns[i] = load<U32>(values[i] + j);
        transpose_words(columns);
        for (int i = 0; i < kFloats && j + i < count; ++i) store(out + (k + j + i) * kPanel + row, columns[i]);
      }
    }
}

inline void rows_to_columns(Element from, const void* const* rows, int64_t n, float* out) {
  transpose_rows(n, out, [&](int64_t row, int64_t k, int64_t count, float* values) {
    to_float(from, static_cast<const char*>(rows[row]) + k * bytes_of(from), values, count);
  });
}

// Products for all codes first, so that no compiler makes one operation of two.
inline void float_scales(const uint8_t* __restrict codes, const float* __restrict table, float factor, float offset, int64_t n,
                         float* __restrict out) {
  constexpr int kCodes = 256;
  float products[kCodes];
  for (int c = 0; c < kCodes; ++c) products[c] = table[c] * factor;
  for (int64_t i = 0; i < n; ++i) out[i] = products[codes[i]] + offset;
}

inline void zero_point_terms(Element scale, const void* const* scales, const void* const* zero_points, int64_t groups,
                             float* out) {
  transpose_rows(groups, out, [&](int64_t row, int64_t g, int64_t count, float* values) {
    const int8_t* const zeros = static_cast<const int8_t*>(zero_points[row]) + g;
    to_float(scale, static_cast<const char*>(scales[row]) + g * bytes_of(scale), values, count);
    for (int64_t i = 0; i < count; ++i) values[i] *= static_cast<float>(zeros[i]);
  });
}

inline void group_sums(Element from, const void* row, int64_t K, int64_t group_size, float* out, int64_t stride) {
  constexpr int64_t kChunk = 256;
  const int64_t bytes = bytes_of(from);
  for (int64_t g = 0; g < K / group_size; ++g) {
    CompensatedSum sums;
    double rest = 0;
    for (int64_t i = 0; i < group_size; i += kChunk) {
      const int64_t n = group_size - i < kChunk ? group_size - i : kChunk;
      float values[kChunk];
      to_float(from, static_cast<const char*>(row) + (g * group_size + i) * bytes, values, n);
      int64_t j = 0;
      for (; j + kFloats <= n; j += kFloats) sums.add(load<F32>(values + j));
      for (; j < n; ++j) rest += values[j];
    }
    out[g * stride] = static_cast<float>(sums.total() + rest);
  }
}

void from_float(Element to, const float* source, void* out, int64_t n) {
  if (to == Element::bf16) return row_from_float<uint16_t, float_to_bf16>(source, out, n);
  if (to == Element::fp16) return row_from_float<uint16_t, float_to_f16>(source, out, n);
  row_from_float<float, identity>(source, out, n);
}

// Values as they are where an instruction set has a way; the rest by way of floats in the first cache.
void to_bf16(Element from, const void* source, void* out, int64_t n) {
  uint16_t* o = static_cast<uint16_t*>(out);
  if (from == Element::bf16) {
    memcpy(out, source, static_cast<size_t>(n) * 2);
    return;
  }
  const int64_t done = from == Element::int8   ? values_to_bf16<Element::int8>(source, o, n)
                       : from == Element::e4m3 ? values_to_bf16<Element::e4m3>(source, o, n)
                       : from == Element::e5m2 ? values_to_bf16<Element::e5m2>(source, o, n)
                                               : 0;
  source = static_cast<const char*>(source) + done;  // of one byte each
  o += done;
  n -= done;
  constexpr int64_t kChunk = 256;
  const int64_t bytes = bytes_of(from);
  float values[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    to_float(from, static_cast<const char*>(source) + i * bytes, values, count);
    from_float(Element::bf16, values, o + i, count);
  }
}

}  // namespace
}  // namespace aoext::cpu
