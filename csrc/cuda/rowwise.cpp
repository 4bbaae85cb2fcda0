#include "cuda/rowwise.h"

#include "common/dispatcher.h"
#include "cuda/kernels/rowwise_any.h"
#include "cuda/operands.h"

namespace aoext::cuda {
namespace {

// Rows of K, filled up with zeros.
Tensor filled_up(const Tensor& t, int64_t rows, int64_t K) {
  const Tensor matrix = aten::reshape(t, {rows, t.size(t.dim() - 1)});
  const Tensor longer = aten::zeros({rows, K}, t.scalar_type(), t);
  aten::copy_(aten::narrow(longer, 1, 0, matrix.size(1)), matrix);
  return longer;
}

Tensor scaled_mm(const LinearProblem& p, const Tensor& x, const Tensor& weight, const generic::RowwiseOperands& operands,
                 const OptionalTensor& bias) {
  const Tensor rows = aten::reshape(aten::contiguous(*operands.input_scale), {p.M, 1});
  const Tensor y = call("aten::_scaled_mm", "", aten::reshape(x, {p.M, weight.size(1)}), aten::transpose(weight), rows,
                        aten::transpose(*operands.weight_scale), bias, OptionalTensor(), std::optional(p.output), false);
  return aten::reshape(y, output_sizes(operands.input, p.N));
}

}  // namespace

OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands) {
  const RowwisePlan plan = plan_rowwise(p, device_of(operands.input), are_aligned({&operands.weight}));
  if (plan.algorithm == RowwiseAlgorithm::generic) return std::nullopt;
  return rowwise_by(plan, p, operands);
}

Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const generic::RowwiseOperands& operands) {
  const Launch launch(operands.input);
  const Tensor x = plan.copies ? filled_up(operands.input, p.M, plan.K) : aligned(operands.input);
  const Tensor weight = plan.copies ? filled_up(operands.weight, p.N, plan.K) : operands.weight;
  const auto dense = [](const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); };
  const OptionalTensor row_scale = dense(operands.input_scale), bias = dense(operands.bias ? &*operands.bias : nullptr);
  if (plan.algorithm == RowwiseAlgorithm::scaled_mm) return scaled_mm(p, x, weight, operands, bias);
  const Tensor y = aten::empty(output_sizes(operands.input, p.N), p.output, operands.input);
  if (p.M == 0 || p.N == 0) return y;

  RowwiseLinear raw = rowwise_linear(p, plan.K);
  raw.x = x.const_data_ptr(), raw.weight = weight.const_data_ptr();
  raw.row_scale = static_cast<const float*>(data_of(row_scale));
  raw.scale = operands.weight_scale == nullptr ? nullptr : operands.weight_scale->const_data_ptr();
  raw.bias = data_of(bias);
  raw.y = y.mutable_data_ptr();
  raw.quantizes = plan.quantizes;

  const cudaStream_t stream = launch.stream();
  switch (plan.algorithm) {
    case RowwiseAlgorithm::decode: check(launch_rowwise_decode(raw, plan.decode, stream), "rowwise_decode"); break;
    case RowwiseAlgorithm::wgmma: check(launch_rowwise_wgmma(raw, plan.wgmma, stream), "rowwise_wgmma"); break;
    case RowwiseAlgorithm::weight_only_wgmma: {
      const OptionalTensor space = workspace(weight_only_wgmma_workspace(raw, plan.wgmma), y);
      check(launch_weight_only_wgmma(raw, plan.wgmma, data_of(space), stream), "weight_only_wgmma");
      break;
    }
    case RowwiseAlgorithm::mma: {
      const OptionalTensor space = workspace(rowwise_mma_workspace(raw, plan.mma), y);
      check(launch_rowwise_mma(raw, plan.mma, data_of(space), stream), "rowwise_mma");
      break;
    }
    default: check(launch_rowwise_any(raw, stream), "rowwise_any");
  }
  return y;
}

}  // namespace aoext::cuda
