#include "cuda/rowwise.h"

namespace aoext::cuda {
namespace {

// Rows of K, filled up with zeros.
Tensor filled_up(const Tensor& t, int64_t rows, int64_t K) {
  const Tensor matrix = aten::reshape(t, {rows, t.size(t.dim() - 1)});
  const Tensor longer = aten::zeros({rows, K}, t.scalar_type(), t);
  aten::copy_(aten::narrow(longer, 1, 0, matrix.size(1)), matrix);
  return longer;
}

}  // namespace

Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const Operands& of) {
  const Launch launch(of.input);
  const Tensor &input = of.input, &weight = of.weight.values;
  const Tensor x = plan.copies ? filled_up(input, p.M, plan.K) : aligned(input);
  const Tensor w = plan.copies ? filled_up(weight, p.N, plan.K) : weight;
  const OptionalTensor row_scale = dense(of.input_scale), bias = dense(of.bias);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;

  RowwiseLinear raw = rowwise_linear(p, plan.K);
  raw.x = x.const_data_ptr(), raw.weight = w.const_data_ptr();
  raw.row_scale = static_cast<const float*>(data_of(row_scale));
  if (p.output != ScalarType::Int) raw.scale = of.weight.scale.const_data_ptr();
  raw.bias = data_of(bias), raw.ends = ends_of(of);
  raw.y = y.mutable_data_ptr();
  raw.quantizes = plan.quantizes;
  launch_planned("rowwise", plan.kernel, raw, y, launch.stream());
  return y;
}

}  // namespace aoext::cuda
