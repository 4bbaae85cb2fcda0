// The operators that the five of operators.inc take the place of, by the same generic kernels.
#include "common/dispatcher.h"
#include "generic/products.h"
#include "generic/quantize_values.h"
#include "generic/register.h"
#include "generic/weight_rows.h"

namespace aoext::generic {

Tensor bf16i4bf16_rowwise_grouped(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                  const Tensor& offsets, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_grouped(input, weight, scale, zero_point, offsets, bias);
  return weight_only_product(p, {input, {weight, scale, &zero_point}, nullptr, pointer_to(bias), &offsets});
}

Tensor bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  return weight_only_product(check_bf16i8bf16_rowwise(input, weight, scale, bias),
                             {input, {weight, scale}, nullptr, pointer_to(bias)});
}

Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  return weight_only_product(check_bf16f8bf16_rowwise(input, weight, scale, bias),
                             {input, {weight, scale}, nullptr, pointer_to(bias)});
}

Tensor bf16i8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            const OptionalTensor& bias) {
  return weight_only_product(check_bf16i8bf16_blockwise(input, weight, scale, block_size, bias),
                             {input, {weight, scale}, nullptr, pointer_to(bias)});
}

Tensor bf16i8bf16_blockwise_zp(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Integers& block_size, const OptionalTensor& bias) {
  return weight_only_product(check_bf16i8bf16_blockwise_zp(input, weight, scale, zero_point, block_size, bias),
                             {input, {weight, scale, &zero_point}, nullptr, pointer_to(bias)});
}

Tensor bf16f8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            const OptionalTensor& bias) {
  return weight_only_product(check_bf16f8bf16_blockwise(input, weight, scale, block_size, bias),
                             {input, {weight, scale}, nullptr, pointer_to(bias)});
}

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  return weight_only_product(check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias),
                             {input, {weight, scale, nullptr, &table, pointer_to(global_scale)}, nullptr, pointer_to(bias)});
}

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  return dequantized(check_dequantize_int4(weight, scale, zero_point, dtype), {weight, scale, &zero_point});
}

Tensor dequantize_rowwise(const Tensor& weight, const Tensor& scale, std::optional<ScalarType> dtype) {
  return dequantized(
      [&] {
        LinearProblem p = check_dequantize_rowwise(weight, scale, dtype);
        p.block_n = 1;
        return p;
      }(),
      {weight, scale});
}

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  return dequantized(check_dequantize_blockwise(weight, scale, block_size, dtype), {weight, scale});
}

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  return dequantized(check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype),
                     {weight, scale, nullptr, &table, pointer_to(global_scale)});
}

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  return quantize(input, dtype, std::nullopt, false);
}

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  return quantize(input, dtype, block_size, power_of_two);
}

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  const auto [values, scale] = call2("ao::quantize_rowwise", "", input, storage(p.code));
  return call("ao::scaled_mm_rowwise", "", values, weight, scale, weight_scale, bias, std::optional(p.output));
}

Tensor scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const Integers& input_block,
                               const Integers& weight_block, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_blockwise(input, weight, weight_scale, input_block, weight_block, bias);
  const auto [values, scale] = call2("ao::quantize_blockwise", "", input, storage(p.code), input_block, p.power_of_two);
  return call("ao::scaled_mm_blockwise", "", values, weight, scale, weight_scale, input_block, weight_block, bias,
              std::optional(p.output));
}

Tensor scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                          const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const LinearProblem p = check_scaled_linear_int4(input, weight, scale, zero_point, bias, input_dtype);
  const auto [values, input_scale] = call2("ao::quantize_rowwise", "", input, input_dtype.value_or(ScalarType::Char));
  return call("ao::scaled_mm_int4", "", values, weight, input_scale, scale, zero_point, bias, std::optional(p.output));
}

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  return scaled_product(
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype),
      {input, {weight, weight_scale}, &input_scale, pointer_to(bias)});
}

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  return scaled_product(check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype),
                        {input, {weight, scale, &zero_point}, &input_scale, pointer_to(bias)});
}

}  // namespace aoext::generic
