// 8-bit × 8-bit with scales, bias and output dtype in the epilogue.
#include "cpu/scaled_mm_rowwise.h"

#include "cpu/int8_product.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

void scaled_int8(const LinearProblem& p, const Plan& plan, const Tensor& input, const Tensor& weight,
                 const std::vector<float>& weight_scales, const Output& output) {
  if (plan.algorithm == Algorithm::dot) {
    int8_dot(p, input, weight, [&](int64_t m, int64_t first, int64_t count, const int32_t* acc) {
      float sums[kTile];
      kernels().to_float(Element::i32, acc, sums, count);
      output.store(m, first, count, sums, &weight_scales[first]);
    });
    return;
  }
  const Tensor x = aten::reshape(input, {p.M, p.K});
  for (int64_t first = 0; first < p.N; first += plan.panel_rows) {
    const Tensor w = aten::narrow(weight, 0, first, std::min(plan.panel_rows, p.N - first));
    store_product(int8_panel(plan, x, w), first, &weight_scales[first], output);
  }
}

}  // namespace

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  const Plan plan = plan_scaled(p);
  if (p.input != ScalarType::Char) return linear(p, plan, input, RowwiseWeight(p, weight, weight_scale), &input_scale, bias);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  scaled_int8(p, plan, input, weight, floats(weight_scale), Output(p, y, &input_scale, bias));
  return y;
}

AOEXT_REGISTER(CPU, scaled_mm_rowwise, &scaled_mm_rowwise)

}  // namespace aoext::cpu
