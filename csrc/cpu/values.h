// What the codes of a row of a weight stand for, in double: K numbers.
#pragma once

#include "cpu/blockwise_weight.h"
#include "cpu/planes_weight.h"
#include "cpu/weights.h"

namespace aoext::cpu {

inline float as_float(Element type, const char* from) {
  float value = 0;
  kernels().to_float(type, from, &value, 1);
  return value;
}

// Code k of a row.
inline int code_of(const Layout& layout, const uint8_t* row, int64_t k) {
  return layout.code.get(row + k / layout.values * layout.bytes, static_cast<int>(k % layout.values));
}

inline void row_values(const Int4Weight& w, int64_t n, double* out) {
  const Element type = element(w.scale_dtype);
  const int64_t size = w.scale_dtype == ScalarType::Float ? 4 : 2;
  for (int64_t g = 0; g < w.K / w.group_size; ++g) {
    const int64_t at = (g * w.N + n) * size;
    const double scale = as_float(type, w.scale + at), zero_point = as_float(type, w.zero_point + at);
    for (int64_t k = g * w.group_size; k < (g + 1) * w.group_size; ++k)
      out[k] = code_of(layout(w.code), w.packed + n * w.row_bytes, k) * scale + zero_point;
  }
}

inline void row_values(const RowwiseWeight& w, int64_t n, double* out) {
  std::vector<float> codes(w.K);
  kernels().to_float(w.value_element, w.values + n * w.K, codes.data(), w.K);
  for (int64_t k = 0; k < w.K; ++k) out[k] = static_cast<double>(codes[k]) * w.scales[n];
}

inline void row_values(const BlockwiseWeight& w, int64_t n, double* out) {
  const char* const codes = w.codes + n * w.row_bytes;
  const char* const scales = w.scale + n / w.block_n * w.scale_row_bytes;
  const int64_t size = w.scale_row_bytes / w.groups;
  for (int64_t k = 0; k < w.K; ++k) {
    const float code = w.is_lut4() ? w.table[code_of(layout(Code::lut4), reinterpret_cast<const uint8_t*>(codes), k)]
                                   : as_float(w.type, codes + k);
    out[k] = static_cast<double>(code) * as_float(w.scale_element, scales + k / w.group_size * size) * w.global_scale;
  }
}

inline void row_values(const PlanesWeight& w, int64_t n, double* out) {
  PlanesWeight::Panel panel(w);
  panel.move(n, 1, 0, w.K);
  const BlockwiseRows row = panel.rows(0);
  for (int64_t k = 0; k < w.K; ++k) {
    const int64_t g = k / w.group_size;
    out[k] = static_cast<double>(static_cast<signed char>(row.codes[k])) * row.scale_rows[0][g];
    if (w.has_zero_points) out[k] += panel.zero_points(0)[g];
  }
}

}  // namespace aoext::cpu
