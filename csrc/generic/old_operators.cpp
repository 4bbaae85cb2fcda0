// The operators that the five of operators.inc take the place of, by the same generic kernels; and the five on devices whose
// folder registers the old ones still.
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

// A device folder that registers the five itself takes its line away below.
namespace aoext::routes {
namespace {

OptionalTensor weight_only(const LinearProblem& p, const Operands& of) {
  const auto& [values, scale, zero_point, table, global_scale] = of.weight;
  const OptionalTensor bias = optional(of.bias);
  const Integers block = generic::weight_block(p);
  if (p.code == Code::int4) {
    if (p.experts > 0) return call("ao::bf16i4bf16_rowwise_grouped", "", of.input, values, scale, *zero_point, *of.offsets, bias);
    return bias ? call("ao::bf16i4bf16_rowwise_bias", "", of.input, values, scale, *zero_point, *bias)
                : call("ao::bf16i4bf16_rowwise", "", of.input, values, scale, *zero_point);
  }
  if (p.experts > 0) return std::nullopt;
  if (p.code == Code::lut4)
    return call("ao::bf16lut4bf16_blockwise", "", of.input, values, *table, scale, block, optional(global_scale), bias);
  const bool int8 = p.code == Code::int8;
  if (is_rowwise(p)) return call(int8 ? "ao::bf16i8bf16_rowwise" : "ao::bf16f8bf16_rowwise", "", of.input, values, scale, bias);
  if (zero_point != nullptr) return call("ao::bf16i8bf16_blockwise_zp", "", of.input, values, scale, *zero_point, block, bias);
  return call(int8 ? "ao::bf16i8bf16_blockwise" : "ao::bf16f8bf16_blockwise", "", of.input, values, scale, block, bias);
}

OptionalTensor scaled(const LinearProblem& p, const Operands& of) {
  const auto& [values, scale, zero_point, table, global_scale] = of.weight;
  const OptionalTensor bias = optional(of.bias);
  const std::optional<ScalarType> dtype(p.output);
  if (p.experts > 0 || p.subtracts_zero_point) return std::nullopt;
  if (p.code == Code::int4)
    return call("ao::scaled_mm_int4", "", of.input, values, *of.input_scale, scale, *zero_point, bias, dtype);
  if (is_rowwise(p)) return call("ao::scaled_mm_rowwise", "", of.input, values, *of.input_scale, scale, bias, dtype);
  return call("ao::scaled_mm_blockwise", "", of.input, values, *of.input_scale, scale, generic::input_block(p),
              generic::weight_block(p), bias, dtype);
}

Tensor scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, const OptionalIntegers& input_block,
                     const OptionalIntegers& block_size, const OptionalTensor& zero_point, const OptionalTensor& bias,
                     const OptionalTensor& offsets, int64_t code, std::optional<ScalarType> input_dtype) {
  const LinearProblem p =
      check_scaled_linear(input, weight, scale, input_block, block_size, zero_point, bias, offsets, code, input_dtype);
  if (p.experts > 0 || p.subtracts_zero_point)
    return generic::scaled_linear(input, weight, scale, input_block, block_size, zero_point, bias, offsets, code, input_dtype);
  if (p.code == Code::int4)
    return call("ao::scaled_linear_int4", "", input, weight, scale, *zero_point, bias, std::optional(p.quantized));
  if (is_rowwise(p)) return call("ao::scaled_linear_rowwise", "", input, weight, scale, bias);
  return call("ao::scaled_linear_blockwise", "", input, weight, scale, generic::input_block(p), generic::weight_block(p), bias);
}

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size,
                                    bool power_of_two) {
  if (!block_size && !power_of_two) return call2("ao::quantize_rowwise", "", input, dtype);
  const LinearProblem p = check_quantize(input, dtype, block_size, power_of_two);
  return call2("ao::quantize_blockwise", "", input, dtype, generic::input_block(p), power_of_two);
}

Tensor dequantize(const Tensor& weight, const Tensor& scale, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                  const OptionalTensor& table, const OptionalTensor& global_scale, int64_t code,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, block_size, zero_point, table, global_scale, code, dtype);
  if (p.code == Code::int4) return call("ao::dequantize_int4", "", weight, scale, *zero_point, dtype);
  if (p.code == Code::lut4)
    return call("ao::dequantize_lut4", "", weight, *table, scale, generic::weight_block(p), global_scale, dtype);
  if (p.subtracts_zero_point) return generic::dequantized(p, {weight, scale, pointer_to(zero_point), nullptr, nullptr});
  if (is_scaled_by_rows(p)) return call("ao::dequantize_rowwise", "", weight, scale, dtype);
  return call("ao::dequantize_blockwise", "", weight, scale, generic::weight_block(p), dtype);
}

// The old operator of a call and its tensors in that operator's order.
template <Key kKey>
Explanation explain(const Call& call) {
  const LinearProblem& p = call.problem;
  const auto tensor = [&](size_t i) { return i < call.tensors.size() ? call.tensors[i] : std::nullopt; };
  std::string name;
  std::vector<OptionalTensor> tensors{tensor(0), tensor(1)};
  if (call.op == "weight_only_linear") {
    const bool int8 = p.code == Code::int8;
    name = p.code == Code::int4     ? p.experts > 0 ? "bf16i4bf16_rowwise_grouped" : "bf16i4bf16_rowwise"
           : p.code == Code::lut4   ? "bf16lut4bf16_blockwise"
           : is_rowwise(p)          ? int8 ? "bf16i8bf16_rowwise" : "bf16f8bf16_rowwise"
           : p.subtracts_zero_point ? "bf16i8bf16_blockwise_zp"
           : int8                   ? "bf16i8bf16_blockwise"
                                    : "bf16f8bf16_blockwise";
    if (p.code == Code::lut4)
      tensors.insert(tensors.end(), {tensor(4), tensor(2), tensor(5)});
    else
      tensors.insert(tensors.end(), {tensor(2), tensor(3), tensor(7)});
  } else if (call.op == "scaled_linear" || call.op == "scaled_mm") {
    name = call.op + (p.code == Code::int4 ? "_int4" : is_rowwise(p) ? "_rowwise" : "_blockwise");
    tensors.insert(tensors.end(), {tensor(2), tensor(3), tensor(4)});
  } else if (call.op == "quantize") {
    name = p.input_group_size == p.K ? "quantize_rowwise" : "quantize_blockwise";
  } else {
    name = p.code == Code::int4   ? "dequantize_int4"
           : p.code == Code::lut4 ? "dequantize_lut4"
           : is_scaled_by_rows(p) ? "dequantize_rowwise"
                                  : "dequantize_blockwise";
    if (p.code == Code::lut4)
      tensors.insert(tensors.end() - 1, tensor(3));
    else
      tensors.insert(tensors.end(), tensor(2));
  }
  const Explain of_old = explain_of(kKey, name);
  return of_old == nullptr ? generic_explanation() : of_old({name, tensors, p});
}

}  // namespace

#define AOEXT_ROUTES(key)                                                                                   \
  AOEXT_REGISTER(key, weight_only_linear, &explain<Key::key>, &generic::weight_only_linear_by<weight_only>) \
  AOEXT_REGISTER(key, scaled_linear, &explain<Key::key>, &scaled_linear)                                    \
  AOEXT_REGISTER(key, scaled_mm, &explain<Key::key>, &generic::scaled_mm_by<scaled>)                        \
  AOEXT_REGISTER(key, quantize, &explain<Key::key>, &quantize)                                              \
  AOEXT_REGISTER(key, dequantize, &explain<Key::key>, &dequantize)

namespace cuda {
AOEXT_ROUTES(CUDA)
}

}  // namespace aoext::routes
