// Weight-only codes of 4 bits through a table, with a scale a block.
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

const float* values_of(const Tensor& table) { return static_cast<const float*>(table.const_data_ptr()); }

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  const BlockwiseWeight blocks(p, weight, scale, &table, global_scale);
  return linear(p, plan_lut4(p, values_of(table)), input, blocks, nullptr, bias);
}

Explanation explain_lut4(const Call& call) {
  constexpr size_t kTable = 2;
  return explain(plan_lut4(call.problem, values_of(call.tensor(kTable))));
}

}  // namespace

AOEXT_REGISTER(CPU, bf16lut4bf16_blockwise, &explain_lut4, &bf16lut4bf16_blockwise)

}  // namespace aoext::cpu
