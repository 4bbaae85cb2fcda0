// Weights of 8 bits with a scale a block to high precision on an XPU.
#include "generic/register.h"
#include "sycl/dequantize_blocks.h"

namespace aoext::xpu {
namespace {

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  const OptionalTensor w = dequantize_blocks(check_dequantize_blockwise(weight, scale, block_size, dtype), weight, scale);
  return w ? *w : generic::dequantize_blockwise(weight, scale, block_size, dtype);
}

}  // namespace

AOEXT_REGISTER(XPU, dequantize_blockwise, &explain_dequantize_blocks, &dequantize_blockwise)

}  // namespace aoext::xpu
