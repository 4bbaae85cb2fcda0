// What comes after a product: a row of sums by its scales, with its bias, in the result's type.
#pragma once

#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

inline void scale_row(Element to, const float* acc, float row_scale, const float* column_scale, const float* bias, void* out,
                      int64_t n) {
  constexpr int64_t kChunk = 64;
  const int64_t bytes = to == Element::fp32 ? 4 : 2;
  float y[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    for (int64_t j = 0; j < count; ++j) y[j] = acc[i + j] * row_scale;
    if (column_scale != nullptr)
      for (int64_t j = 0; j < count; ++j) y[j] *= column_scale[i + j];
    if (bias != nullptr)
      for (int64_t j = 0; j < count; ++j) y[j] += bias[i + j];
    from_float(to, y, static_cast<char*>(out) + i * bytes, count);
  }
}

}  // namespace
}  // namespace aoext::cpu
