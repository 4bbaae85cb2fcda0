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

template <RowwiseKernel kKernel, auto kCheck, auto kGeneric>
Tensor weight_only_by(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  const OptionalTensor y = kKernel(kCheck(input, weight, scale, bias), {input, weight, nullptr, &scale, bias});
  return y ? *y : kGeneric(input, weight, scale, bias);
}

template <RowwiseKernel kKernel>
constexpr auto bf16i8bf16_rowwise_by = &weight_only_by<kKernel, check_bf16i8bf16_rowwise, bf16i8bf16_rowwise>;
template <RowwiseKernel kKernel>
constexpr auto bf16f8bf16_rowwise_by = &weight_only_by<kKernel, check_bf16f8bf16_rowwise, bf16f8bf16_rowwise>;

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
  const auto [values, scale] = kQuantize(input, storage(p.code));
  return scaled_mm_rowwise_by<kKernel>(values, weight, scale, weight_scale, bias, p.output);
}

}  // namespace aoext::generic
