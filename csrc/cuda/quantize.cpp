#include "cuda/quantize.h"

#include "common/sizes.h"
#include "cuda/kernels/quantize_blockwise.h"
#include "cuda/kernels/quantize_transposed.h"
#include "cuda/operands.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

int64_t rows_of(const Tensor& input) {
  return input.size(input.dim() - 1) == 0 ? 0 : input.numel() / input.size(input.dim() - 1);
}

// What both kernels read.
template <class Raw>
Raw raw_of(const Tensor& x, const Tensor& values, const Tensor& scales, ScalarType dtype) {
  Raw raw{};
  raw.x = x.const_data_ptr(), raw.values = values.mutable_data_ptr();
  raw.scales = static_cast<float*>(scales.mutable_data_ptr());
  raw.K = x.size(x.dim() - 1), raw.M = rows_of(x);
  raw.type = element(x.scalar_type()), raw.output = element(dtype);
  return raw;
}

// An input [M, K] as the kernel that reads by columns takes it: one that lies as [K, M], such as x.t().
std::optional<QuantizeTransposed> transposed(const Tensor& input, const LinearProblem& p) {
  if (input.dim() != 2 || input.stride(0) != 1 || input.size(0) < 2 || input.size(1) < 2) return std::nullopt;
  QuantizeTransposed raw{};
  raw.x = input.const_data_ptr(), raw.M = input.size(0), raw.K = input.size(1), raw.pitch = input.stride(1);
  raw.block = p.input_group_size, raw.power_of_two = p.power_of_two;
  raw.type = element(input.scalar_type()), raw.output = element(p.output);
  if (raw.pitch < raw.M || !quantize_transposed_takes(raw)) return std::nullopt;
  return raw;
}

std::tuple<Tensor, Tensor> quantize_columns(const Tensor& input, ScalarType dtype, QuantizeTransposed raw) {
  const Launch launch(input);
  const Tensor values = aten::empty(output_sizes(input, raw.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, ceil_div(raw.K, raw.block)), ScalarType::Float, input);
  OptionalTensor absmax;
  if (raw.block >= raw.K) absmax = aten::zeros({raw.M}, ScalarType::Int, input);
  raw.values = values.mutable_data_ptr(), raw.scales = static_cast<float*>(scales.mutable_data_ptr());
  raw.absmax = static_cast<uint32_t*>(data_of(absmax));
  check(launch_quantize_transposed(raw, launch.stream()), "quantize");
  return {values, scales};
}

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size,
                                    bool power_of_two) {
  const LinearProblem p = check_quantize(input, dtype, block_size, power_of_two);
  if (!takes_one_pass(p.K, device_of(input))) return generic::quantize(input, dtype, block_size, power_of_two);
  if (const auto raw = transposed(input, p)) return quantize_columns(input, dtype, *raw);
  if (p.input_group_size < p.K) return quantize_blocks(input, dtype, p.input_group_size, power_of_two, 0);
  const QuantizedRows rows = quantize_rows(input, dtype, {.power_of_two = power_of_two});
  return {rows.values, rows.scales};
}

Explanation explain_quantize(const Call& call) {
  const LinearProblem& p = call.problem;
  if (!takes_one_pass(p.K, device_of(call.tensor(0)))) return generic_explanation();
  if (transposed(call.tensor(0), p)) return {"cuda", "quantize_transposed"};
  return {"cuda", p.input_group_size < p.K ? "quantize_blockwise" : "quantize_rowwise"};
}

}  // namespace

QuantizedRows quantize_rows(const Tensor& input, ScalarType dtype, const RowsForm& form) {
  const Launch launch(input);
  const int64_t M = rows_of(input), K = input.size(input.dim() - 1);
  const Tensor values = aten::empty(output_sizes(input, K), form.wide ? input.scalar_type() : dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (M == 0) return {values, scales};
  OptionalTensor all_sums;
  const Tensor x = aten::contiguous(input);
  auto raw = raw_of<QuantizeRowwise>(x, values, scales, dtype);
  raw.wide = form.wide, raw.power_of_two = form.power_of_two;
  if (form.sums.lines > 0 && quantize_rowwise_sums(raw)) {
    all_sums = workspace(M * form.sums.lines * kSumLine * kSumBytes, values);
    raw.sums = form.sums, raw.sums.sums = data_of(all_sums);
  }
  check(launch_quantize_rowwise(raw, launch.stream()), "quantize");
  return {values, scales, all_sums};
}

std::tuple<Tensor, Tensor> quantize_blocks(const Tensor& input, ScalarType dtype, int64_t block, bool power_of_two,
                                           int64_t pitch) {
  const Launch launch(input);
  const int64_t M = rows_of(input), K = input.size(input.dim() - 1), blocks = ceil_div(K, block);
  const Tensor values = aten::empty(output_sizes(input, K), dtype, input);
  const auto scale_sizes = pitch > 0 ? std::vector<int64_t>{blocks, pitch} : output_sizes(input, blocks);
  // A pitch has room for rows behind the last, whose scales are zeros.
  const Tensor scales = (pitch > M ? aten::zeros : aten::empty)(scale_sizes, ScalarType::Float, input);
  if (M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);
  auto raw = raw_of<QuantizeBlockwise>(x, values, scales, dtype);
  raw.block = block, raw.power_of_two = power_of_two;
  raw.scale_m = pitch > 0 ? 1 : blocks, raw.scale_k = pitch > 0 ? pitch : 1;
  check(launch_quantize_blockwise(raw, launch.stream()), "quantize");
  return {values, scales};
}

AOEXT_REGISTER(CUDA, quantize, &explain_quantize, &quantize)

}  // namespace aoext::cuda
