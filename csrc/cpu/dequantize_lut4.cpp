// Codes of 4 bits through a table to high precision.
#include "cpu/dequantize_rows.h"
#include "cpu/plan.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
  return dequantize_rows(p, weight, BlockwiseWeight(p, weight, scale, &table, global_scale));
}

}  // namespace

AOEXT_REGISTER(CPU, dequantize_lut4, &explain_rows, &dequantize_lut4)

}  // namespace aoext::cpu
