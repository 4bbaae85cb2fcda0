// Codes of 4 bits through a table to high precision on an XPU.
#include "generic/register.h"
#include "sycl/dequantize_blocks.h"

namespace aoext::xpu {
namespace {

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
  const OptionalTensor w = dequantize_blocks(p, weight, scale, table, global_scale);
  return w ? *w : generic::dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
}

}  // namespace

AOEXT_REGISTER(XPU, dequantize_lut4, &explain_dequantize_blocks, &dequantize_lut4)

}  // namespace aoext::xpu
