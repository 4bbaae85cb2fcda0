#include "common/checks.h"

#include "common/checker.h"
#include "common/int4pack.h"
#include "common/sizes.h"

namespace aoext {
namespace {

// What an input of 8 bits may be under weights of a format: of the weights' own dtype where they have one element a byte, nothing
// under tables, else int8 (the default) or float8_e4m3fn.
bool has_either_input(const Format& format) { return is_packed(format.code) && !format.has_table; }

bool is_input_of(ScalarType dtype, const Format& format) {
  if (has_either_input(format)) return dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn;
  return !format.has_table && dtype == format.storage;
}

auto inputs_of(const Format& format) {
  return [&format]() -> std::string {
    if (has_either_input(format)) return "int8 or float8_e4m3fn";
    if (format.has_table) return std::string("of 8 bits, which ") + format.name + " weights do not take";
    return dtype_name(format.storage);
  };
}

LinearProblem int4_linear(const char* op, const Tensor& input, const Weight& weight, const OptionalTensor& bias = {}) {
  const Checker check(op, "input", input);
  LinearProblem p = check.high_precision_input();
  p.code = Code::int4;
  check.weight(p, weight, std::nullopt);
  check.bias(p, bias);
  return p;
}

// What sort_by_expert takes: offsets are int32, and a count for each expert fits into a block's memory on a GPU.
constexpr int64_t kMostPairs = INT32_MAX, kMostExperts = 8192;

// What a dequantisation gives where it is not asked for a dtype.
ScalarType dequantized_dtype(const LinearProblem& p) { return is_high_precision(p.scale) ? p.scale : ScalarType::Float; }

}  // namespace

LinearProblem check_bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  return int4_linear("bf16i4bf16_rowwise", input, {weight, scale, &zero_point});
}

LinearProblem check_bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                            const Tensor& zero_point, const Tensor& bias) {
  return int4_linear("bf16i4bf16_rowwise_bias", input, {weight, scale, &zero_point}, bias);
}

LinearProblem check_int8_mm(const Tensor& input, const Tensor& weight) {
  const Checker check("int8_mm", "input", input);
  LinearProblem p = check.input(dtype_of(input) == ScalarType::Char, "int8");
  p.code = Code::int8;
  check.int8_depth(p, p.input);
  check.values(p, weight);
  p.group_size = p.K;
  p.output = ScalarType::Int;
  return p;
}

LinearProblem check_scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                                      const Tensor& weight_scale, const OptionalTensor& bias,
                                      std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_rowwise", "input", input);
  LinearProblem p = check.input(is_8bit(dtype_of(input)), k8Bit);
  p.code = code_of(p.input);
  check.int8_depth(p, p.input);
  check.values(p, weight);
  p.group_size = p.input_group_size = p.K;
  check.input_scale(input_scale, "[..., 1]", 1);
  check.row_scale(p, "weight_scale", dtype_of(weight_scale) == ScalarType::Float, "float32", weight_scale);
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_weight_only_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code,
                                       const OptionalTensor& bias, const OptionalIntegers& block_size,
                                       const OptionalTensor& zero_point, const OptionalTensor& table,
                                       const OptionalTensor& global_scale, const OptionalTensor& offsets) {
  const Checker check("weight_only_linear", "input", input);
  LinearProblem p = check.high_precision_input();
  p.code = check.code(code);
  check.experts(p, offsets);
  check.weight(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)}, block_size);
  check.bias(p, bias);
  return p;
}

LinearProblem check_scaled_mm(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                              int64_t code, const OptionalTensor& bias, const OptionalIntegers& input_block,
                              const OptionalIntegers& block_size, const OptionalTensor& zero_point, const OptionalTensor& offsets,
                              std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm", "input", input);
  const Format& format = format_of(check.code(code));
  LinearProblem p = check.input(is_input_of(dtype_of(input), format), text(inputs_of(format)));
  p.code = format.code;
  check.experts(p, offsets);
  check.int8_depth(p, p.input);
  check.weight(p, {weight, scale, pointer_to(zero_point)}, block_size);
  check.input_block(p, "input_block", input_block);
  check.whole_rows(p, "input_block");
  check.input_scale(input_scale, "[..., ceil(K/block_k)]", ceil_div(p.K, p.input_group_size));
  check.bias(p, bias);
  check.output(p, "out_dtype", out_dtype.value_or(ScalarType::BFloat16));
  return p;
}

LinearProblem check_scaled_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code,
                                  const OptionalTensor& bias, const OptionalIntegers& input_block,
                                  const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                                  const OptionalTensor& offsets, std::optional<ScalarType> input_dtype) {
  const Checker check("scaled_linear", "input", input);
  LinearProblem p = check.high_precision_input();
  p.code = check.code(code);
  const Format& format = format_of(p.code);
  p.quantized = input_dtype.value_or(is_packed(format.code) ? ScalarType::Char : format.storage);
  check.dtype(is_input_of(p.quantized, format), "input_dtype", text(inputs_of(format)), p.quantized);
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

LinearProblem check_dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                               const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                               std::optional<ScalarType> dtype) {
  const Checker check("dequantize", "weight", weight);
  LinearProblem p{};
  p.code = check.code(code);
  check.weight(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)}, block_size);
  check.output(p, "dtype", dtype.value_or(dequantized_dtype(p)));
  return p;
}

LinearProblem check_sort_by_expert(const Tensor& expert, int64_t experts) {
  const Checker check("sort_by_expert", "expert", expert);
  const ScalarType dtype = dtype_of(expert);
  check.require((dtype == ScalarType::Int || dtype == ScalarType::Long) && expert.numel() <= kMostPairs, "expert",
                text("int32 or int64 with at most ", kMostPairs, " elements"), expert);
  if (experts < 1 || experts > kMostExperts) check.fail("experts", text("1 to ", kMostExperts), std::to_string(experts));
  LinearProblem p{};
  p.M = expert.numel();
  p.experts = experts;
  p.input = dtype;
  p.output = ScalarType::Long;
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
