// The operators with 8-bit weights of a device folder, whose kernels may not serve every problem.
#pragma once

#include "generic/generic.h"

namespace aoext::generic {

struct RowwiseOperands {
  const Tensor &input, &weight;
  const Tensor* input_scale;   // null: none
  const Tensor* weight_scale;  // null: none, and the result is the int32 sum
  OptionalTensor bias;
};

// What a device folder brings: the product, or null where no kernel of its own serves. The generic kernels do then.
using RowwiseKernel = OptionalTensor(const LinearProblem& p, const RowwiseOperands& operands);
using QuantizeKernel = std::tuple<Tensor, Tensor>(const Tensor& input, ScalarType dtype);

template <RowwiseKernel kKernel>
Tensor bf16i8bf16_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& scale) {
  const OptionalTensor y = kKernel(check_bf16i8bf16_rowwise(input, weight, scale), {input, weight, nullptr, &scale, {}});
  return y ? *y : bf16i8bf16_rowwise(input, weight, scale);
}

template <RowwiseKernel kKernel>
Tensor bf16i8bf16_rowwise_bias_by(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias) {
  const LinearProblem p = check_bf16i8bf16_rowwise_bias(input, weight, scale, bias);
  const OptionalTensor y = kKernel(p, {input, weight, nullptr, &scale, bias});
  return y ? *y : bf16i8bf16_rowwise_bias(input, weight, scale, bias);
}

template <RowwiseKernel kKernel>
Tensor bf16f8bf16_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& scale) {
  const OptionalTensor y = kKernel(check_bf16f8bf16_rowwise(input, weight, scale), {input, weight, nullptr, &scale, {}});
  return y ? *y : bf16f8bf16_rowwise(input, weight, scale);
}

template <RowwiseKernel kKernel>
Tensor bf16f8bf16_rowwise_bias_by(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias) {
  const LinearProblem p = check_bf16f8bf16_rowwise_bias(input, weight, scale, bias);
  const OptionalTensor y = kKernel(p, {input, weight, nullptr, &scale, bias});
  return y ? *y : bf16f8bf16_rowwise_bias(input, weight, scale, bias);
}

template <RowwiseKernel kKernel>
Tensor int8_mm_by(const Tensor& input, const Tensor& weight) {
  const OptionalTensor y = kKernel(check_int8_mm(input, weight), {input, weight, nullptr, nullptr, {}});
  return y ? *y : int8_mm(input, weight);
}

template <RowwiseKernel kKernel>
Tensor scaled_mm_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                            const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  const OptionalTensor y = kKernel(p, {input, weight, &input_scale, &weight_scale, bias});
  return y ? *y : scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
}

// Dynamic quantisation of the input, then the scaled product: the two operators of a device in one call.
template <QuantizeKernel kQuantize, RowwiseKernel kKernel>
Tensor scaled_linear_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const auto [values, scale] = kQuantize(input, p.weight);
  return scaled_mm_rowwise_by<kKernel>(values, weight, scale, weight_scale, bias, p.output);
}

}  // namespace aoext::generic
