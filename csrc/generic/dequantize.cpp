// Weights to high precision on any device.
#include "generic/generic.h"
#include "generic/nested_scales.h"
#include "generic/weight_rows.h"

namespace aoext::generic {

Tensor dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                  const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  const WithFloatScales w(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)});
  return dequantized(p, w.weight);
}

}  // namespace aoext::generic
