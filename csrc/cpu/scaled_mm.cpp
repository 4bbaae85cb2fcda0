// Products of an input of 8 bits, with scales, bias and the result's dtype in the epilogue. Products of int8 are exact: over all
// of K by scales of rows, within a group of int4 or a segment of blocks.
#include "cpu/scaled_mm.h"

#include "cpu/explain.h"
#include "cpu/int8_product.h"
#include "cpu/linear.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor int8_by_rows(const LinearProblem& p, Kernel kernel, const Operands& of) {
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(of.input);
  const InputRows rows = input_rows(p, x);
  const RowwiseWeight weight(p, of.weight.values, floats(of.weight.scale));
  const Output output(p, y, rows, weight, of.input_scale, of.bias);
  int8_product(p, kernel, rows, weight,
               [&](int64_t m, int64_t first, int64_t count, const int32_t* sums, const float* row_scales) {
                 float values[kPanel];
                 kernels().to_float(Element::int32, sums, values, count);
                 output.store(m, first, count, values, row_scales);
               });
  return y;
}

}  // namespace

OptionalTensor scaled_mm(const LinearProblem& p, const Operands& of) {
  if (p.experts > 0 || p.subtracts_zero_point) return std::nullopt;
  const Kernel kernel = plan_scaled(Choice(p));
  if (is_by_groups(p.code)) return linear(p, kernel, of, Int4Weight(p, of.weight));
  if (!is_rowwise(p)) return linear(p, kernel, of, BlockwiseWeight(p, of.weight));
  if (p.input == ScalarType::Char) return int8_by_rows(p, kernel, of);
  return linear(p, kernel, of, RowwiseWeight(p, of.weight.values, floats(of.weight.scale)));
}

AOEXT_REGISTER(CPU, scaled_mm, &explain, &generic::scaled_mm_by<scaled_mm>)
AOEXT_REGISTER(CPU, scaled_mm_rowwise, &explain, &generic::scaled_mm_rowwise_by<scaled_mm>)

}  // namespace aoext::cpu
