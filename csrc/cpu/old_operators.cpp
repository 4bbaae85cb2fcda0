// The operators that the five of operators.inc take the place of, by the same products.
#include "common/dispatcher.h"
#include "cpu/explain.h"
#include "cpu/quantize.h"
#include "cpu/scaled_mm.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor weight_only(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalIntegers& block_size,
                   const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                   const OptionalTensor& bias, Code code) {
  return kernel_of<&generic::weight_only_linear>[static_cast<int>(Key::CPU)](
      input, weight, scale, block_size, zero_point, table, global_scale, bias, std::nullopt, static_cast<int64_t>(code));
}

Tensor rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias, Code code) {
  return weight_only(input, weight, scale, {}, {}, {}, {}, bias, code);
}

Tensor bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  return rowwise(input, weight, scale, bias, check_bf16i8bf16_rowwise(input, weight, scale, bias).code);
}

Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  return rowwise(input, weight, scale, bias, check_bf16f8bf16_rowwise(input, weight, scale, bias).code);
}

template <auto kCheck>
Tensor blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                 const OptionalTensor& bias) {
  return weight_only(input, weight, scale, block_size, {}, {}, {}, bias, kCheck(input, weight, scale, block_size, bias).code);
}

Tensor bf16i8bf16_blockwise_zp(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Integers& block_size, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i8bf16_blockwise_zp(input, weight, scale, zero_point, block_size, bias);
  return weight_only(input, weight, scale, block_size, zero_point, {}, {}, bias, p.code);
}

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  return weight_only(input, weight, scale, block_size, {}, table, global_scale, bias, p.code);
}

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  LinearProblem p = check_quantize_rowwise(input, dtype);
  p.input_group_size = p.K;
  return quantize_rows(p, input, dtype);
}

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  return quantize_rows(check_quantize_blockwise(input, dtype, block_size, power_of_two), input, dtype);
}

Tensor scaled(const LinearProblem& p, const Operands& of) {
  const OptionalTensor y = scaled_mm(p, of);
  return y ? *y : generic::scaled_product(p, of);
}

Tensor quantized_and_scaled(LinearProblem p, ScalarType dtype, const Tensor& input, const Weight& weight,
                            const OptionalTensor& bias) {
  if (p.input_group_size == 0) p.input_group_size = p.K;
  const auto [values, input_scale] = quantize_rows(p, input, dtype);
  p.input = dtype;
  return scaled(p, {values, weight, &input_scale, pointer_to(bias)});
}

Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_rowwise(input, weight, weight_scale, bias);
  return quantized_and_scaled(p, storage(p.code), input, {weight, weight_scale}, bias);
}

Tensor scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const Integers& input_block,
                               const Integers& weight_block, const OptionalTensor& bias) {
  const LinearProblem p = check_scaled_linear_blockwise(input, weight, weight_scale, input_block, weight_block, bias);
  return quantized_and_scaled(p, storage(p.code), input, {weight, weight_scale}, bias);
}

Tensor scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                          const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const LinearProblem p = check_scaled_linear_int4(input, weight, scale, zero_point, bias, input_dtype);
  return quantized_and_scaled(p, p.quantized, input, {weight, scale, &zero_point}, bias);
}

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  return scaled(check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype),
                {input, {weight, weight_scale}, &input_scale, pointer_to(bias)});
}

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  return scaled(check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype),
                {input, {weight, scale, &zero_point}, &input_scale, pointer_to(bias)});
}

Tensor dequantized(const Tensor& weight, const Tensor& scale, const OptionalIntegers& block_size,
                   const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                   const LinearProblem& p) {
  return kernel_of<&generic::dequantize>[static_cast<int>(Key::CPU)](weight, scale, block_size, zero_point, table, global_scale,
                                                                     static_cast<int64_t>(p.code), p.output);
}

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  return dequantized(weight, scale, {}, zero_point, {}, {}, check_dequantize_int4(weight, scale, zero_point, dtype));
}

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  return dequantized(weight, scale, block_size, {}, {}, {}, check_dequantize_blockwise(weight, scale, block_size, dtype));
}

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  return dequantized(weight, scale, block_size, {}, table, global_scale,
                     check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype));
}

Explanation explain_old(const Call& call) {
  LinearProblem p = call.problem;
  const bool quantizes = call.op.rfind("quantize", 0) == 0, dequantizes = call.op.rfind("dequantize", 0) == 0;
  const bool linear = call.op.rfind("scaled_linear", 0) == 0, mm = call.op.rfind("scaled_mm", 0) == 0;
  if ((linear || mm) && p.input_group_size == 0) p.input_group_size = p.K;
  if (linear && p.code != Code::int4) p.quantized = storage(p.code);
  std::vector<OptionalTensor> tensors = call.tensors;
  if (call.op == "bf16lut4bf16_blockwise") tensors.resize(5), tensors[4] = tensors[2];
  const char* const name = quantizes     ? "quantize"
                           : dequantizes ? "dequantize"
                           : linear      ? "scaled_linear"
                           : mm          ? "scaled_mm"
                                         : "weight_only_linear";
  return explain({name, tensors, p});
}

}  // namespace

AOEXT_REGISTER(CPU, bf16i8bf16_rowwise, &explain_old, &bf16i8bf16_rowwise)
AOEXT_REGISTER(CPU, bf16f8bf16_rowwise, &explain_old, &bf16f8bf16_rowwise)
AOEXT_REGISTER(CPU, bf16i8bf16_blockwise, &explain_old, &blockwise<check_bf16i8bf16_blockwise>)
AOEXT_REGISTER(CPU, bf16f8bf16_blockwise, &explain_old, &blockwise<check_bf16f8bf16_blockwise>)
AOEXT_REGISTER(CPU, bf16i8bf16_blockwise_zp, &explain_old, &bf16i8bf16_blockwise_zp)
AOEXT_REGISTER(CPU, bf16lut4bf16_blockwise, &explain_old, &bf16lut4bf16_blockwise)
AOEXT_REGISTER(CPU, quantize_rowwise, &explain_old, &quantize_rowwise)
AOEXT_REGISTER(CPU, quantize_blockwise, &explain_old, &quantize_blockwise)
AOEXT_REGISTER(CPU, scaled_linear_rowwise, &explain_old, &scaled_linear_rowwise)
AOEXT_REGISTER(CPU, scaled_linear_blockwise, &explain_old, &scaled_linear_blockwise)
AOEXT_REGISTER(CPU, scaled_linear_int4, &explain_old, &scaled_linear_int4)
AOEXT_REGISTER(CPU, scaled_mm_blockwise, &explain_old, &scaled_mm_blockwise)
AOEXT_REGISTER(CPU, scaled_mm_int4, &explain_old, &scaled_mm_int4)
AOEXT_REGISTER(CPU, dequantize_int4, &explain_old, &dequantize_int4)
AOEXT_REGISTER(CPU, dequantize_blockwise, &explain_old, &dequantize_blockwise)
AOEXT_REGISTER(CPU, dequantize_lut4, &explain_old, &dequantize_lut4)

}  // namespace aoext::cpu
