// Weights of 8 bits with a scale a block to high precision.
#include "cpu/dequantize_rows.h"
#include "cpu/plan.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_blockwise(weight, scale, block_size, dtype);
  return dequantize_rows(p, weight, BlockwiseWeight(p, weight, scale));
}

}  // namespace

AOEXT_REGISTER(CPU, dequantize_blockwise, &explain_rows, &dequantize_blockwise)

}  // namespace aoext::cpu
