// Products of an input of 8 bits, with scales, bias and the result's dtype in the epilogue. Products of int8 are exact: over all
// of K by scales of rows, within a group of int4 or a segment of blocks.
#include "cpu/scaled_mm.h"

#include "cpu/experts.h"
#include "cpu/explain.h"
#include "cpu/int8_product.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

void int8_by_rows(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels, const RowwiseWeight& weight) {
  const InputRows rows = input_rows(p, d.input);
  const Output output(p, d, rows, weight);
  int8_product(p, kernel, rows, panels, weight,
               [&](int64_t m, int64_t first, int64_t count, const int32_t* sums, const float* row_scales) {
                 float values[kPanel];
                 kernels().to_float(Element::int32, sums, values, count);
                 output.store(m, first, count, values, row_scales);
               });
}

void multiply_scaled(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels) {
  if (is_in_planes(p.code)) return linear(p, kernel, d, panels, PlanesWeight(p, d.weight));
  if (is_by_groups(p.code)) return linear(p, kernel, d, panels, Int4Weight(p, d.weight));
  if (!is_rowwise(p)) return linear(p, kernel, d, panels, BlockwiseWeight(p, d.weight));
  const RowwiseWeight rows(p, d.weight.values, floats(element(p.scale), d.weight.scale, p.N));
  if (p.input == ScalarType::Char) return int8_by_rows(p, kernel, d, panels, rows);
  linear(p, kernel, d, panels, rows);
}

Kernel scaled_kernel(const LinearProblem& p, const WeightData& /*w*/) { return plan_scaled(Choice(p)); }

}  // namespace

OptionalTensor scaled_mm(const LinearProblem& p, const Operands& of) {
  if (p.subtracts_zero_point) return std::nullopt;
  return product("ao::scaled_mm", p, of, {scaled_kernel, multiply_scaled});
}

AOEXT_REGISTER(CPU, scaled_mm, &explain, &generic::scaled_mm_by<scaled_mm>)
AOEXT_REGISTER(CPU, scaled_mm_rowwise, &explain, &generic::scaled_mm_rowwise_by<scaled_mm>)

}  // namespace aoext::cpu
