// y[M, N] = sums[M, N] · row_scale[M] · column_scale[N] + bias[N], from the int32 sums of an int8 product.
//
// A work-group scales neighbouring elements of one row: 4 bytes read and 2 or 4 written each, scales and bias come from
// the cache.
#include "kernel.h"
#include "scaled_sum.h"

AOEXT_KERNEL(scale_rows)(void* y, const int* sums, const float* row_scale, const void* column_scale, const void* bias, int64_t N,
                         Element output_type, Element scale_type, Element bias_type) {
  const auto item = aoext::xpu::this_item();
  const aoext::xpu::Scaling scaling{y, row_scale, column_scale, bias, output_type, scale_type, bias_type};
  const int64_t m = item.get_global_id(0);
  const int64_t width = item.get_global_range(1);
  for (int64_t n = item.get_global_id(1); n < N; n += width)
    aoext::xpu::store_scaled(scaling, N, m, n, static_cast<float>(sums[m * N + n]));
}
