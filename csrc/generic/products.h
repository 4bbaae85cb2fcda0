// Products by checked arguments: the generic kernels, and operators of a device folder, whose kernels may not serve every
// problem.
//
// A device brings one function for each kind of product, `Product`, and a quantisation; what the operators make of their
// arguments stands here once for all devices. The seeds of the namespace, whose schemas are fixed to the letter, are faces of the
// same products.
#pragma once

#include "common/operands.h"
#include "generic/nested_scales.h"
#include "generic/register.h"

namespace aoext::generic {

// The product, or null where no kernel of the device's own serves: the generic one does then.
using Product = OptionalTensor(const LinearProblem& p, const Operands& operands);

// Values of an input in `dtype` and their scales, by the problem's blocks.
using Quantize = std::tuple<Tensor, Tensor>(const LinearProblem& p, const Tensor& input, ScalarType dtype);

Tensor weight_only_product(const LinearProblem& p, const Operands& operands);
Tensor scaled_product(const LinearProblem& p, const Operands& operands);

// Rows that are sorted by expert, one expert after the other, each by the device's own kernel for one weight. The host waits for
// the offsets. `op` is the operator whose arguments these are.
Tensor by_expert(const char* op, const LinearProblem& p, const Operands& operands);

// For each expert where its rows end, which the host waits for. RuntimeError where they are no ends.
std::vector<int64_t> ends_of(const char* op, const Tensor& offsets, int64_t rows);

// The same error before a device's own kernel takes offsets that it reads itself, where AOEXT_CHECK_OFFSETS=1 asks for it: the
// host waits for them then, but in a graph that is captured, which is not checked.
void check_offsets(const char* op, const LinearProblem& p, const Operands& operands);

// The arguments of the block sizes that a problem has come from.
inline Integers weight_block(const LinearProblem& p) { return {p.block_n, p.group_size}; }
inline Integers input_block(const LinearProblem& p) { return {1, p.input_group_size}; }

// The device's product, where its folder knows the format.
template <Product kProduct>
OptionalTensor own_product(const char* op, const LinearProblem& p, const Operands& operands) {
  if (format_of(p.code).folders != kAllFolders) {
    const std::optional<Key> key = key_of(operands.input);
    if (!key || !knows(*key, p.code)) return std::nullopt;
  }
  if (p.experts > 0) check_offsets(op, p, operands);
  return kProduct(p, operands);
}

template <Product kProduct>
Tensor weight_only_linear_by(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code,
                             const OptionalTensor& bias, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                             const OptionalTensor& table, const OptionalTensor& global_scale, const OptionalTensor& offsets) {
  const LinearProblem p =
      check_weight_only_linear(input, weight, scale, code, bias, block_size, zero_point, table, global_scale, offsets);
  const WithFloatScales w(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)});
  const Operands operands{input, w.weight, nullptr, pointer_to(bias), pointer_to(offsets)};
  const OptionalTensor y = own_product<kProduct>("ao::weight_only_linear", p, operands);
  return y ? *y : weight_only_product(p, operands);
}

template <Product kProduct>
Tensor bf16i4bf16_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  const OptionalTensor y = kProduct(p, {input, {weight, scale, &zero_point}});
  return y ? *y : bf16i4bf16_rowwise(input, weight, scale, zero_point);
}

template <Product kProduct>
Tensor bf16i4bf16_rowwise_bias_by(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                  const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  const OptionalTensor y = kProduct(p, {input, {weight, scale, &zero_point}, nullptr, &bias});
  return y ? *y : bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
}

template <Product kProduct>
Tensor scaled_mm_by(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale, int64_t code,
                    const OptionalTensor& bias, const OptionalIntegers& input_block, const OptionalIntegers& block_size,
                    const OptionalTensor& zero_point, const OptionalTensor& offsets, std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm(input, weight, input_scale, scale, code, bias, input_block, block_size, zero_point, offsets, out_dtype);
  const Operands operands{input, {weight, scale, pointer_to(zero_point)}, &input_scale, pointer_to(bias), pointer_to(offsets)};
  const OptionalTensor y = own_product<kProduct>("ao::scaled_mm", p, operands);
  return y ? *y : scaled_product(p, operands);
}

template <Product kProduct>
Tensor scaled_mm_rowwise_by(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                            const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  const Operands operands{input, {weight, weight_scale}, &input_scale, pointer_to(bias)};
  const OptionalTensor y = own_product<kProduct>("ao::scaled_mm_rowwise", p, operands);
  return y ? *y : scaled_product(p, operands);
}

// Dynamic quantisation of the input, then the scaled product: the device's two kernels in one call.
template <Quantize kQuantize, Product kProduct>
Tensor scaled_linear_by(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code, const OptionalTensor& bias,
                        const OptionalIntegers& input_block, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                        const OptionalTensor& offsets, std::optional<ScalarType> input_dtype) {
  LinearProblem p =
      check_scaled_linear(input, weight, scale, code, bias, input_block, block_size, zero_point, offsets, input_dtype);
  const auto [values, input_scale] = kQuantize(p, input, p.quantized);
  p.input = p.quantized;
  const Operands operands{values, {weight, scale, pointer_to(zero_point)}, &input_scale, pointer_to(bias), pointer_to(offsets)};
  const OptionalTensor y = own_product<kProduct>("ao::scaled_linear", p, operands);
  return y ? *y : scaled_product(p, operands);
}

}  // namespace aoext::generic
