// Weights of 8 bits with a scale a block to high precision on any device.
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  return dequantize(check_dequantize_blockwise(weight, scale, block_size, dtype), {weight, scale});
}

}  // namespace aoext::generic
