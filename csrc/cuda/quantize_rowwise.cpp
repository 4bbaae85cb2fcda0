#include "cuda/quantize_rowwise.h"

#include "common/checks.h"
#include "common/dispatcher.h"
#include "cuda/device.h"
#include "cuda/kernels/quantize_rowwise.h"
#include "cuda/operands.h"
#include "cuda/plan.h"
#include "generic/register.h"

namespace aoext::cuda {

QuantizedRows quantize_rowwise(const Tensor& input, ScalarType dtype, const RowsForm& form) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  if (!takes_one_pass(p.K, device_of(input))) {
    const auto [values, scales] = generic::quantize_rowwise(input, dtype);
    return {values, scales};
  }
  const Launch launch(input);
  const Tensor values = aten::empty(output_sizes(input, p.K), form.wide ? p.input : dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  OptionalTensor all_sums;
  const Tensor x = aten::contiguous(input);
  QuantizeRowwise raw{};
  raw.x = x.const_data_ptr(), raw.values = values.mutable_data_ptr();
  raw.scales = static_cast<float*>(scales.mutable_data_ptr());
  raw.M = p.M, raw.K = p.K, raw.type = element(p.input), raw.output = element(p.output), raw.wide = form.wide;
  if (form.sums.lines > 0 && quantize_rowwise_sums(raw)) {
    all_sums = workspace(p.M * form.sums.lines * kSumLine * kSumBytes, values);
    raw.sums = form.sums, raw.sums.sums = data_of(all_sums);
  }
  check(launch_quantize_rowwise(raw, launch.stream()), "quantize_rowwise");
  return {values, scales, all_sums};
}

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const QuantizedRows rows = quantize_rowwise(input, dtype, {});
  return {rows.values, rows.scales};
}

namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype) { return quantize_rowwise(input, dtype); }

}  // namespace

AOEXT_REGISTER(CUDA, quantize_rowwise, &explain_one_pass, &quantize)

}  // namespace aoext::cuda
