// Dynamic quantisation of the input by blocks, then the scaled product: the two kernels in one call.
#include "cpu/plan.h"
#include "cpu/quantize_rowwise.h"
#include "cpu/scaled_mm_blockwise.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const Integers& input_block,
                               const Integers& weight_block, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_blockwise(input, weight, weight_scale, input_block, weight_block, bias);
  const auto [values, scale] = quantize_by_blocks(p, input, storage(p.code), p.input_group_size);
  LinearProblem product = p;
  product.input = storage(p.code);
  return multiply_by_blocks(product, values, weight, scale, weight_scale, bias);
}

}  // namespace

AOEXT_REGISTER(CPU, scaled_linear_blockwise, &explain<plan_scaled_blockwise>, &scaled_linear_blockwise)

}  // namespace aoext::cpu
