// Codes of 4 bits through a table to high precision on any device.
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
  return dequantize(p, {weight, scale, table, global_scale});
}

}  // namespace aoext::generic
