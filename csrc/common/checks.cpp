#include "common/checks.h"

#include "common/checker.h"
#include "common/int4pack.h"
#include "common/sizes.h"

namespace aoext {
namespace {

constexpr const char* kInt4Input = "int8 or float8_e4m3fn";  // under int4 weights

LinearProblem int4_linear(const char* op, const Tensor& input, const Tensor& weight, const Tensor& scale,
                          const Tensor& zero_point, const OptionalTensor& bias = {}) {
  const Checker check(op, "input", input);
  LinearProblem p = check.high_precision_input();
  check.int4(p, weight, scale, zero_point);
  check.bias(p, bias);
  return p;
}

// Codes of 8 bits under an input of high precision.
LinearProblem weight_only_8bit(const char* op, bool weight_ok, const char* weight_dtypes, const Tensor& input,
                               const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  const Checker check(op, "input", input);
  LinearProblem p = check.high_precision_input();
  check.weight8(p, weight_ok, weight_dtypes, weight);
  check.row_scale(p, "scale", is_high_precision(dtype_of(scale)), kHighPrecision, scale);
  check.bias(p, bias);
  return p;
}

LinearProblem weight_only_blockwise(const char* op, bool weight_ok, const char* weight_dtypes, const Tensor& input,
                                    const Tensor& weight, const Tensor& scale, const Tensor* zero_point,
                                    const Integers& block_size, const OptionalTensor& bias) {
  const Checker check(op, "input", input);
  LinearProblem p = check.high_precision_input();
  check.weight8(p, weight_ok, weight_dtypes, weight);
  check.block_scale(p, "scale", scale, "block_size", block_size);
  if (zero_point != nullptr) check.block_zero_point(p, scale, *zero_point);
  check.bias(p, bias);
  return p;
}

// The dtypes that an input of 8 bits may have under weights of a code: that of the weights, or the two that int4 takes.
bool is_input_of(ScalarType dtype, Code code) {
  return code == Code::int4 ? dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn
                            : code != Code::lut4 && dtype == storage(code);
}

const char* inputs_of(Code code) {
  return code == Code::int4   ? kInt4Input
         : code == Code::lut4 ? "of 8 bits, which lut4 weights do not take"
                              : dtype_name(storage(code));
}

ScalarType first_input_of(Code code) { return code == Code::int4 ? ScalarType::Char : storage(code); }

// What a dequantisation gives where it is not asked for a dtype.
ScalarType dequantized_dtype(const LinearProblem& p) { return is_high_precision(p.scale) ? p.scale : ScalarType::Float; }

}  // namespace

LinearProblem check_bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  return int4_linear("bf16i4bf16_rowwise", input, weight, scale, zero_point);
}

LinearProblem check_bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                            const Tensor& zero_point, const Tensor& bias) {
  return int4_linear("bf16i4bf16_rowwise_bias", input, weight, scale, zero_point, bias);
}

LinearProblem check_bf16i4bf16_rowwise_grouped(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                               const Tensor& zero_point, const Tensor& offsets, const OptionalTensor& bias) {
  const Checker check("bf16i4bf16_rowwise_grouped", "input", input);
  LinearProblem p = check.high_precision_input();
  check.experts(p, offsets);
  check.int4(p, weight, scale, zero_point);
  check.bias(p, bias);
  return p;
}

LinearProblem check_bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                       const OptionalTensor& bias) {
  const bool weight_ok = dtype_of(weight) == ScalarType::Char;
  return weight_only_8bit("bf16i8bf16_rowwise", weight_ok, "int8", input, weight, scale, bias);
}

LinearProblem check_bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                       const OptionalTensor& bias) {
  const bool weight_ok = is_float8(dtype_of(weight));
  return weight_only_8bit("bf16f8bf16_rowwise", weight_ok, "float8_e4m3fn or float8_e5m2", input, weight, scale, bias);
}

LinearProblem check_dequantize_rowwise(const Tensor& weight, const Tensor& scale, std::optional<ScalarType> dtype) {
  const Checker check("dequantize_rowwise", "weight", weight);
  LinearProblem p = check.weight8_alone();
  check.row_scale(p, "scale", is_high_precision(dtype_of(scale)), kHighPrecision, scale);
  check.output(p, "dtype", dtype.value_or(p.scale));
  return p;
}

LinearProblem check_int8_mm(const Tensor& input, const Tensor& weight) {
  const Checker check("int8_mm", "input", input);
  LinearProblem p = check.input(dtype_of(input) == ScalarType::Char, "int8");
  check.int8_depth(p, p.input);
  check.weight8(p, dtype_of(weight) == ScalarType::Char, "int8", weight);
  p.output = ScalarType::Int;
  return p;
}

LinearProblem check_scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                                      const Tensor& weight_scale, const OptionalTensor& bias,
                                      std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_rowwise", "input", input);
  LinearProblem p = check.input(is_8bit(dtype_of(input)), k8Bit);
  check.int8_depth(p, p.input);
  check.weight8(p, dtype_of(weight) == p.input, text("of input's dtype, ", dtype_name(p.input), ","), weight);
  p.input_group_size = p.K;
  check.input_scale(input_scale, "[..., 1]", 1);
  check.row_scale(p, "weight_scale", dtype_of(weight_scale) == ScalarType::Float, "float32", weight_scale);
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                          const OptionalTensor& bias) {
  const Checker check("scaled_linear_rowwise", "input", input);
  LinearProblem p = check.high_precision_input();
  check.weight8(p, is_8bit(dtype_of(weight)), k8Bit, weight);
  check.int8_depth(p, storage(p.code));
  check.row_scale(p, "weight_scale", dtype_of(weight_scale) == ScalarType::Float, "float32", weight_scale);
  check.bias(p, bias);
  return p;
}

LinearProblem check_bf16i8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                         const Integers& block_size, const OptionalTensor& bias) {
  const bool weight_ok = dtype_of(weight) == ScalarType::Char;
  return weight_only_blockwise("bf16i8bf16_blockwise", weight_ok, "int8", input, weight, scale, nullptr, block_size, bias);
}

LinearProblem check_bf16i8bf16_blockwise_zp(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                            const Tensor& zero_point, const Integers& block_size, const OptionalTensor& bias) {
  const bool weight_ok = dtype_of(weight) == ScalarType::Char;
  return weight_only_blockwise("bf16i8bf16_blockwise_zp", weight_ok, "int8", input, weight, scale, &zero_point, block_size, bias);
}

LinearProblem check_bf16f8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                         const Integers& block_size, const OptionalTensor& bias) {
  const bool weight_ok = is_float8(dtype_of(weight));
  return weight_only_blockwise("bf16f8bf16_blockwise", weight_ok, "float8_e4m3fn or float8_e5m2", input, weight, scale, nullptr,
                               block_size, bias);
}

LinearProblem check_bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                                           const Integers& block_size, const OptionalTensor& global_scale,
                                           const OptionalTensor& bias) {
  const Checker check("bf16lut4bf16_blockwise", "input", input);
  LinearProblem p = check.high_precision_input();
  check.lut4(p, weight, table, pointer_to(global_scale));
  check.block_scale(p, "scale", scale, "block_size", block_size);
  check.bias(p, bias);
  return p;
}

LinearProblem check_dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                                         std::optional<ScalarType> dtype) {
  const Checker check("dequantize_blockwise", "weight", weight);
  LinearProblem p = check.weight8_alone();
  check.block_scale(p, "scale", scale, "block_size", block_size);
  check.output(p, "dtype", dtype.value_or(dequantized_dtype(p)));
  return p;
}

LinearProblem check_dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                                    const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const Checker check("dequantize_lut4", "weight", weight);
  LinearProblem p{};
  check.lut4(p, weight, table, pointer_to(global_scale));
  check.block_scale(p, "scale", scale, "block_size", block_size);
  check.output(p, "dtype", dtype.value_or(dequantized_dtype(p)));
  return p;
}

LinearProblem check_quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size, bool power_of_two) {
  const Checker check("quantize_blockwise", "input", input);
  LinearProblem p = check.high_precision_input();
  check.dtype(is_8bit(dtype), "dtype", k8Bit, dtype);
  check.input_block(p, "block_size", block_size);
  p.power_of_two = power_of_two;
  p.output = dtype;
  return p;
}

LinearProblem check_scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                                        const Tensor& weight_scale, const Integers& input_block, const Integers& weight_block,
                                        const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_blockwise", "input", input);
  LinearProblem p = check.input(is_8bit(dtype_of(input)), k8Bit);
  check.int8_depth(p, p.input);
  check.weight8(p, dtype_of(weight) == p.input, text("of input's dtype, ", dtype_name(p.input), ","), weight);
  check.input_block(p, "input_block", input_block);
  check.input_scale(input_scale, "[..., ceil(K/block_k)]", ceil_div(p.K, p.input_group_size));
  check.block_scale(p, "weight_scale", weight_scale, "weight_block", weight_block);
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                            const Integers& input_block, const Integers& weight_block,
                                            const OptionalTensor& bias) {
  const Checker check("scaled_linear_blockwise", "input", input);
  LinearProblem p = check.high_precision_input();
  check.weight8(p, is_8bit(dtype_of(weight)), k8Bit, weight);
  check.int8_depth(p, storage(p.code));
  check.input_block(p, "input_block", input_block);
  check.block_scale(p, "weight_scale", weight_scale, "weight_block", weight_block);
  p.power_of_two = p.scale == ScalarType::Float8_e8m0fnu;  // scales of one kind on both sides
  check.bias(p, bias);
  return p;
}

LinearProblem check_scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                                   const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_int4", "input", input);
  const ScalarType dtype = dtype_of(input);
  LinearProblem p = check.input(dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn, kInt4Input);
  check.int8_depth(p, dtype);
  check.int4(p, weight, scale, zero_point);
  check.input_scale(input_scale, "[..., 1]", 1);
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                       const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const Checker check("scaled_linear_int4", "input", input);
  LinearProblem p = check.high_precision_input();
  const ScalarType dtype = input_dtype.value_or(ScalarType::Char);
  check.dtype(dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn, "input_dtype", kInt4Input, dtype);
  p.quantized = dtype;
  check.int8_depth(p, dtype);
  check.int4(p, weight, scale, zero_point);
  check.bias(p, bias);
  return p;
}

LinearProblem check_quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const Checker check("quantize_rowwise", "input", input);
  LinearProblem p = check.high_precision_input();
  check.dtype(is_8bit(dtype), "dtype", k8Bit, dtype);
  p.output = dtype;
  return p;
}

LinearProblem check_dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                    std::optional<ScalarType> dtype) {
  const Checker check("dequantize_int4", "weight", weight);
  LinearProblem p{};
  check.int4(p, weight, scale, zero_point);
  check.output(p, "dtype", dtype.value_or(p.scale));
  return p;
}

LinearProblem check_weight_only_linear(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                       const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                                       const OptionalTensor& table, const OptionalTensor& global_scale,
                                       const OptionalTensor& bias, const OptionalTensor& offsets, int64_t code) {
  const Checker check("weight_only_linear", "input", input);
  LinearProblem p = check.high_precision_input();
  p.code = check.code(code);
  check.experts(p, offsets);
  check.weight(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)}, block_size);
  check.bias(p, bias);
  return p;
}

LinearProblem check_scaled_mm(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                              const OptionalIntegers& input_block, const OptionalIntegers& block_size,
                              const OptionalTensor& zero_point, const OptionalTensor& bias, const OptionalTensor& offsets,
                              int64_t code, std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm", "input", input);
  const Code of_weight = check.code(code);
  const ScalarType dtype = dtype_of(input);
  LinearProblem p = check.input(is_input_of(dtype, of_weight), inputs_of(of_weight));
  p.code = of_weight;
  check.experts(p, offsets);
  check.int8_depth(p, dtype);
  check.weight(p, {weight, scale, pointer_to(zero_point)}, block_size);
  check.input_block(p, "input_block", input_block);
  check.whole_rows(p, "input_block");
  check.input_scale(input_scale, "[..., ceil(K/block_k)]", ceil_div(p.K, p.input_group_size));
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                  const OptionalIntegers& input_block, const OptionalIntegers& block_size,
                                  const OptionalTensor& zero_point, const OptionalTensor& bias, const OptionalTensor& offsets,
                                  int64_t code, std::optional<ScalarType> input_dtype) {
  const Checker check("scaled_linear", "input", input);
  LinearProblem p = check.high_precision_input();
  p.code = check.code(code);
  p.quantized = input_dtype.value_or(first_input_of(p.code));
  check.dtype(is_input_of(p.quantized, p.code), "input_dtype", inputs_of(p.code), p.quantized);
  check.experts(p, offsets);
  check.int8_depth(p, p.quantized);
  check.weight(p, {weight, scale, pointer_to(zero_point)}, block_size);
  check.input_block(p, "input_block", input_block);
  check.whole_rows(p, "input_block");
  check.bias(p, bias);
  p.power_of_two = p.scale == ScalarType::Float8_e8m0fnu;  // scales of one kind on both sides
  return p;
}

LinearProblem check_quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size, bool power_of_two) {
  const Checker check("quantize", "input", input);
  LinearProblem p = check.high_precision_input();
  check.dtype(is_8bit(dtype), "dtype", k8Bit, dtype);
  check.input_block(p, "block_size", block_size);
  p.power_of_two = power_of_two;
  p.output = dtype;
  return p;
}

LinearProblem check_dequantize(const Tensor& weight, const Tensor& scale, const OptionalIntegers& block_size,
                               const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                               int64_t code, std::optional<ScalarType> dtype) {
  const Checker check("dequantize", "weight", weight);
  LinearProblem p{};
  p.code = check.code(code);
  check.weight(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)}, block_size);
  check.output(p, "dtype", dtype.value_or(dequantized_dtype(p)));
  return p;
}

LinearProblem check_convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles) {
  const Checker check("convert_weight_to_int4pack", "weight", weight);
  if (!int4pack::is_inner_k_tiles(inner_k_tiles))
    check.fail("inner_k_tiles", int4pack::kInnerKTiles, std::to_string(inner_k_tiles));
  check.require(dtype_of(weight) == ScalarType::Byte && weight.dim() == 2 && weight.size(0) % 8 == 0 && weight.size(1) > 0 &&
                    weight.size(1) % (8 * inner_k_tiles) == 0,
                "weight",
                text("uint8 [N, K/2] with N a multiple of 8 and K one of 16 * inner_k_tiles = ", 16 * inner_k_tiles, ", not 0"),
                weight);
  check.contiguous("weight", weight);
  LinearProblem p{};
  p.N = weight.size(0);
  p.K = 2 * weight.size(1);
  p.code = Code::int4;
  p.output = ScalarType::Int;
  p.inner_k_tiles = inner_k_tiles;
  return p;
}

LinearProblem check_weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size,
                                       const Tensor& scale_and_zero) {
  const Checker check("weight_int4pack_mm", "input", input);
  check.require(dtype_of(input) == ScalarType::BFloat16 && input.dim() == 2, "input", "bfloat16 [M, K]", input);
  LinearProblem p = check.input(true, "bfloat16");
  check.packed_weight(p, weight);
  check.scale_and_zero(p, group_size, scale_and_zero);
  return p;
}

std::vector<int64_t> int4pack_sizes(const LinearProblem& p) {
  return {p.N / 8, p.K / (16 * p.inner_k_tiles), 32, p.inner_k_tiles / 2};
}

std::vector<int64_t> output_sizes(const Tensor& input, int64_t last) {
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end());
  sizes.back() = last;
  return sizes;
}

}  // namespace aoext
