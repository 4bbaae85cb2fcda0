// Weight-only products: few input rows meet the codes themselves; for more, codes become rows in cache that are then multiplied.
#include "cpu/experts.h"
#include "cpu/explain.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Kernel weight_only_kernel(const LinearProblem& p, const WeightData& w) { return plan_weight_only(Choice(p, isa(), w.table)); }

void multiply_weight_only(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels) {
  if (is_in_planes(p.code)) return linear(p, kernel, d, panels, PlanesWeight(p, d.weight));
  if (is_by_groups(p.code)) return linear(p, kernel, d, panels, Int4Weight(p, d.weight));
  const BlockwiseWeight blocks(p, d.weight);
  if (blocks.is_lut4() || p.group_size < p.K) return linear(p, kernel, d, panels, blocks);
  linear(p, kernel, d, panels, RowwiseWeight(p, d.weight.values, blocks.row_scales()));
}

OptionalTensor weight_only_linear(const LinearProblem& p, const Operands& of) {
  return product("ao::weight_only_linear", p, of, {weight_only_kernel, multiply_weight_only});
}

}  // namespace

AOEXT_REGISTER(CPU, weight_only_linear, &explain, &generic::weight_only_linear_by<weight_only_linear>)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise, &explain, &generic::bf16i4bf16_rowwise_by<weight_only_linear>)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise_bias, &explain, &generic::bf16i4bf16_rowwise_bias_by<weight_only_linear>)

}  // namespace aoext::cpu
