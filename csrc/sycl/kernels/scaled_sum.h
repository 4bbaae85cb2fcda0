// The epilogue of a row-wise product: scales, bias and the one rounding.
#pragma once

#include "numeric.h"

namespace aoext::xpu {

// y[m, n] = sum · row_scale[m] · column_scale[n] + bias[n]; row_scale and bias may be null.
struct Scaling {
  void* y;
  const float* row_scale;
  const void *column_scale, *bias;
  Element output_type, scale_type, bias_type;
};

// No fused multiply-add, so that every device and kernel gives the same bits for the same sum.
inline void store_scaled(const Scaling& s, int64_t N, int64_t m, int64_t n, float sum) {
#pragma clang fp contract(off)
  if (s.row_scale != nullptr) sum *= s.row_scale[m];
  float value = sum * load_float(s.column_scale, n, s.scale_type);
  if (s.bias != nullptr) value = value + load_float(s.bias, n, s.bias_type);
  store_float(s.y, m * N + n, s.output_type, value);
}

}  // namespace aoext::xpu
