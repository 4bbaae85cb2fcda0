// Weight-only products: few input rows meet the codes themselves; for more, codes become rows in cache that are then multiplied.
#include "cpu/explain.h"
#include "cpu/linear.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

// Experts go one after the other, each through this operator again.
OptionalTensor weight_only_linear(const LinearProblem& p, const Operands& of) {
  if (p.experts > 0) return std::nullopt;
  if (is_by_groups(p.code)) return linear(p, plan_weight_only(Choice(p)), of, Int4Weight(p, of.weight));
  const BlockwiseWeight blocks(p, of.weight);
  const Kernel kernel = plan_weight_only(Choice(p, isa(), blocks.table));
  if (blocks.is_lut4() || p.group_size < p.K) return linear(p, kernel, of, blocks);
  return linear(p, kernel, of, RowwiseWeight(p, of.weight.values, blocks.row_scales()));
}

}  // namespace

AOEXT_REGISTER(CPU, weight_only_linear, &explain, &generic::weight_only_linear_by<weight_only_linear>)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise, &explain, &generic::bf16i4bf16_rowwise_by<weight_only_linear>)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise_bias, &explain, &generic::bf16i4bf16_rowwise_bias_by<weight_only_linear>)

}  // namespace aoext::cpu
