// Dynamic quantisation by blocks of k.
#include "cpu/plan.h"
#include "cpu/quantize_rowwise.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  const LinearProblem p = check_quantize_blockwise(input, dtype, block_size, power_of_two);
  return quantize_by_blocks(p, input, dtype, p.input_group_size);
}

}  // namespace

AOEXT_REGISTER(CPU, quantize_blockwise, &explain_rows, &quantize_blockwise)

}  // namespace aoext::cpu
