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

size_t workspace_bytes(const RowwiseLinear& p, const RowwiseKernel& kernel) {
  return std::visit(Overloaded{[](const auto&) { return size_t{0}; },
                               [&](const WeightOnlyWgmmaConfig& c) { return weight_only_wgmma_workspace(p, c); },
                               [&](const RowwiseMmaConfig& c) { return rowwise_mma_workspace(p, c); }},
                    kernel);
}

cudaError_t launch_kernel(const RowwiseLinear& p, const RowwiseKernel& kernel, void* workspace, cudaStream_t stream) {
  return std::visit(Overloaded{[](const Generic&) { return cudaErrorNotSupported; },
                               [&](const RowwiseAny&) { return launch_rowwise_any(p, stream); },
                               [&](const RowwiseDecodeConfig& c) { return launch_rowwise_decode(p, c, stream); },
                               [&](const RowwiseWgmmaConfig& c) { return launch_rowwise_wgmma(p, c, stream); },
                               [&](const WeightOnlyWgmmaConfig& c) { return launch_weight_only_wgmma(p, c, workspace, stream); },
                               [&](const RowwiseMmaConfig& c) { return launch_rowwise_mma(p, c, workspace, stream); }},
                    kernel);
}

}  // namespace

OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands) {
  const RowwisePlan plan = plan_rowwise(p, device_of(operands.input), are_aligned({&operands.weight}));
  if (std::holds_alternative<Generic>(plan.kernel)) return std::nullopt;
  return rowwise_by(plan, p, operands);
}

Tensor rowwise_by(const RowwisePlan& plan, const LinearProblem& p, const generic::RowwiseOperands& operands) {
  const Launch launch(operands.input);
  const Tensor x = plan.copies ? filled_up(operands.input, p.M, plan.K) : aligned(operands.input);
  const Tensor weight = plan.copies ? filled_up(operands.weight, p.N, plan.K) : operands.weight;
  const auto dense = [](const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); };
  const OptionalTensor row_scale = dense(operands.input_scale), bias = dense(operands.bias ? &*operands.bias : nullptr);
  const Tensor y = aten::empty(output_sizes(operands.input, p.N), p.output, operands.input);
  if (p.M == 0 || p.N == 0) return y;

  RowwiseLinear raw = rowwise_linear(p, plan.K);
  raw.x = x.const_data_ptr(), raw.weight = weight.const_data_ptr();
  raw.row_scale = static_cast<const float*>(data_of(row_scale));
  raw.scale = operands.weight_scale == nullptr ? nullptr : operands.weight_scale->const_data_ptr();
  raw.bias = data_of(bias);
  raw.y = y.mutable_data_ptr();
  raw.quantizes = plan.quantizes;

  const OptionalTensor space = workspace(workspace_bytes(raw, plan.kernel), y);
  check(launch_kernel(raw, plan.kernel, data_of(space), launch.stream()), "rowwise");
  return y;
}

}  // namespace aoext::cuda
