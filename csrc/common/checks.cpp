#include "common/checks.h"

#include <sstream>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "common/describe.h"
#include "common/formats.h"
#include "common/int4pack.h"
#include "common/sizes.h"

namespace aoext {
namespace {

constexpr int64_t kInt8MaxK = 131071;  // 128 · 128 · K still fits in an int32
constexpr const char* kHighPrecision = "bfloat16, float16 or float32";
constexpr const char* k8Bit = "int8, float8_e4m3fn or float8_e5m2";
constexpr const char* kInt4Input = "int8 or float8_e4m3fn";  // under int4 weights
constexpr const char* kBlockScale = "float32, bfloat16, float16, float8_e8m0fnu (or uint8 exponents) or float8_e4m3fn";

// Parts of an error's text, put together where the error is raised: a call that is right builds no text. A part that takes
// work to say is a function.
template <class... Parts>
class Text {
 public:
  explicit Text(const Parts&... parts) : parts_(parts...) {}

  friend std::ostream& operator<<(std::ostream& out, const Text& text) {
    std::apply([&](const Parts&... parts) { (put(out, parts), ...); }, text.parts_);
    return out;
  }

 private:
  template <class Part>
  static void put(std::ostream& out, const Part& part) {
    if constexpr (std::is_invocable_v<Part>)
      out << part();
    else
      out << part;
  }

  std::tuple<const Parts&...> parts_;  // they live as long as the check that they are written in
};

template <class... Parts>
Text<Parts...> text(const Parts&... parts) {
  return Text<Parts...>(parts...);
}

// The checks of one call: `op` is whom errors name, `input` the tensor whose device the others share.
class Checker {
 public:
  Checker(const char* op, const char* anchor_name, const Tensor& anchor)
      : op_(op), anchor_name_(anchor_name), anchor_(anchor), device_(device_of(anchor)) {
    memory(anchor_name, anchor);
  }

  template <class Must, class Got>
  [[noreturn]] void fail(const char* argument, const Must& must, const Got& got) const {
    std::ostringstream out;
    out << text("ao::", op_, ": ", argument, " must be ", must, ", got ", got);
    throw std::runtime_error(out.str());
  }

  template <class Must>
  void require(bool condition, const char* argument, const Must& must, const Tensor& got) const {
    if (!condition) fail(argument, must, describe(got));
  }

  void dtype(bool condition, const char* argument, const char* must, ScalarType got) const {
    if (!condition) fail(argument, must, dtype_name(got));
  }

  // Memory and device of an operand beside the anchor.
  void operand(const char* argument, const Tensor& t) const {
    memory(argument, t);
    if (device_of(t) != device_)
      fail(argument, text("on the device of ", anchor_name_, ", ", device_name(anchor_)), device_name(t));
  }

  void contiguous(const char* argument, const Tensor& t) const {
    if (t.is_contiguous()) return;
    fail(argument, "contiguous", text(describe(t), " with strides ", list(t.strides())));
  }

  // Sets M, K and the dtypes from an input [..., K].
  LinearProblem input(bool dtype_ok, const char* dtypes) const {
    require(dtype_ok && anchor_.dim() >= 1, "input", text(dtypes, " [..., K]"), anchor_);
    LinearProblem p{};
    p.K = anchor_.size(anchor_.dim() - 1);
    require(p.K > 0, "input", "[..., K] with K > 0", anchor_);
    p.M = 1;
    for (int64_t d = 0; d + 1 < anchor_.dim(); ++d) p.M *= anchor_.size(d);
    p.input = p.output = dtype_of(anchor_);
    return p;
  }

  // Sets N from a row-wise 8-bit weight [N, K].
  template <class Dtypes>
  void weight8(LinearProblem& p, bool dtype_ok, const Dtypes& dtypes, const Tensor& weight) const {
    operand("weight", weight);
    require(dtype_ok && weight.dim() == 2 && weight.size(1) == p.K, "weight",
            text(dtypes, " [N, K] = [*, ", p.K, "] for an input with K = ", p.K), weight);
    contiguous("weight", weight);
    p.N = weight.size(0);
    p.code = code_of(dtype_of(weight));
    p.group_size = p.K;
    result(p);
  }

  void row_scale(LinearProblem& p, const char* argument, bool dtype_ok, const char* dtypes, const Tensor& scale) const {
    operand(argument, scale);
    require(dtype_ok && scale.dim() == 2 && scale.size(0) == p.N && scale.size(1) == 1, argument,
            text(dtypes, " [N, 1] = [", p.N, ", 1]"), scale);
    contiguous(argument, scale);
    p.scale = dtype_of(scale);
  }

  // The two sizes of a block [block_n, block_k].
  void block(const char* argument, const Integers& block) const {
    if (block.size() != 2 || block[0] < 1 || block[1] < 1) fail(argument, "[block_n, block_k], both positive", list(block));
  }

  // Of the input, whose rows share no scale.
  void input_block(LinearProblem& p, const char* argument, const Integers& block) const {
    if (block.size() != 2 || block[0] != 1 || block[1] < 1) fail(argument, "[1, block_k], block_k positive", list(block));
    p.input_group_size = std::min(block[1], p.K);
  }

  // The scales of a weight [N, K] that one and all in a block [block_n, block_k] share.
  void block_scale(LinearProblem& p, const char* argument, const Tensor& scale, const char* block_argument,
                   const Integers& block_size) const {
    block(block_argument, block_size);
    p.block_n = std::min(block_size[0], std::max<int64_t>(p.N, 1)), p.group_size = std::min(block_size[1], p.K);
    const int64_t rows = ceil_div(p.N, block_size[0]), columns = ceil_div(p.K, block_size[1]);
    operand(argument, scale);
    require(is_block_scale(dtype_of(scale)) && scale.dim() == 2 && scale.size(0) == rows && scale.size(1) == columns, argument,
            text(kBlockScale, " [ceil(N/block_n), ceil(K/block_k)] = [", rows, ", ", columns, "]"), scale);
    contiguous(argument, scale);
    p.scale = dtype_of(scale) == ScalarType::Byte ? ScalarType::Float8_e8m0fnu : dtype_of(scale);
  }

  // A weight of codes into a table, two to a byte; K comes from the input where there is one.
  void lut4(LinearProblem& p, const Tensor& weight, const Tensor& table, const OptionalTensor& global_scale) const {
    if (p.K == 0) {
      require(dtype_of(weight) == ScalarType::Byte && weight.dim() == 2 && weight.size(1) > 0, "weight",
              "uint8 [N, K/2] with K > 0", weight);
      p.K = 2 * weight.size(1);
    } else {
      require(p.K % 2 == 0, "input", "[..., K] with K even", anchor_);
      operand("weight", weight);
      require(dtype_of(weight) == ScalarType::Byte && weight.dim() == 2 && weight.size(1) == p.K / 2, "weight",
              text("uint8 [N, K/2] = [*, ", p.K / 2, "] for an input with K = ", p.K), weight);
    }
    contiguous("weight", weight);
    p.N = weight.size(0);
    p.code = Code::lut4;
    result(p);
    operand("table", table);
    require(dtype_of(table) == ScalarType::Float && table.dim() == 1 && table.size(0) == 16, "table", "float32 [16]", table);
    contiguous("table", table);
    p.has_global_scale = global_scale.has_value();
    if (!global_scale) return;
    operand("global_scale", *global_scale);
    require(dtype_of(*global_scale) == ScalarType::Float && global_scale->numel() == 1, "global_scale",
            "float32 with one element", *global_scale);
  }

  // Checks weight, scale and zero_point of the int4 layout; K comes from the input where there is one.
  void int4(LinearProblem& p, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) const {
    const bool from_input = p.K > 0;
    if (!from_input) {
      require(dtype_of(weight) == ScalarType::Char && weight.dim() == 2 && weight.size(1) > 0, "weight",
              "int8 [N, K/2] with K > 0", weight);
      p.K = 2 * weight.size(1);
    } else {
      require(p.K % 2 == 0, "input", "[..., K] with K even", anchor_);
      operand("weight", weight);
      require(dtype_of(weight) == ScalarType::Char && weight.dim() == 2 && weight.size(1) == p.K / 2, "weight",
              text("int8 [N, K/2] = [*, ", p.K / 2, "] for an input with K = ", p.K), weight);
    }
    contiguous("weight", weight);
    p.N = weight.size(0);
    p.code = Code::int4, p.has_zero_point = true;
    result(p);
    operand("scale", scale);
    require(is_high_precision(dtype_of(scale)) && scale.dim() == 2 && scale.size(1) == p.N && scale.size(0) > 0 &&
                p.K % scale.size(0) == 0,
            "scale",
            text("bfloat16, float16 or float32 [K/group_size, N] = [*, ", p.N, "] with a group_size that divides K = ", p.K),
            scale);
    contiguous("scale", scale);
    p.scale = dtype_of(scale);
    p.group_size = p.K / scale.size(0);
    operand("zero_point", zero_point);
    require(dtype_of(zero_point) == p.scale && zero_point.dim() == 2 && zero_point.size(0) == scale.size(0) &&
                zero_point.size(1) == p.N,
            "zero_point", text("of scale's dtype and shape, ", [&] { return describe(scale); }), zero_point);
    contiguous("zero_point", zero_point);
  }

  // Sets N and inner_k_tiles from a weight in the tinygemm layout.
  void packed_weight(LinearProblem& p, const Tensor& weight) const {
    operand("weight", weight);
    const int64_t* const sizes = weight.sizes().data();
    require(dtype_of(weight) == ScalarType::Int && int4pack::is_weight(weight.dim(), sizes, p.K), "weight",
            text([&] { return int4pack::weight_must_be(p.K); }), weight);
    contiguous("weight", weight);
    p.N = int4pack::rows_of(sizes);
    p.code = Code::int4, p.has_zero_point = true;
    p.inner_k_tiles = int4pack::inner_k_tiles_of(sizes);
    result(p);
  }

  void scale_and_zero(LinearProblem& p, int64_t group_size, const Tensor& t) const {
    if (!int4pack::is_group_size(group_size, p.K))
      fail("group_size", int4pack::group_size_must_be(p.K), std::to_string(group_size));
    operand("scale_and_zero", t);
    const int64_t groups = p.K / group_size;
    require(dtype_of(t) == ScalarType::BFloat16 && int4pack::is_scale_and_zero(t.dim(), t.sizes().data(), groups, p.N),
            "scale_and_zero", text([&] { return int4pack::scale_and_zero_must_be(groups, p.N); }), t);
    contiguous("scale_and_zero", t);
    p.scale = ScalarType::BFloat16;
    p.group_size = group_size;
  }

  void bias(LinearProblem& p, const Tensor& bias) const {
    operand("bias", bias);
    require(is_high_precision(dtype_of(bias)) && bias.dim() == 1 && bias.size(0) == p.N, "bias",
            text("bfloat16, float16 or float32 [N] = [", p.N, "]"), bias);
    p.has_bias = true;
    p.bias = dtype_of(bias);
  }

 private:
  void memory(const char* argument, const Tensor& t) const {
    if (!is_strided(t)) fail(argument, "a dense (strided) tensor", text("a tensor of another layout, ", describe(t)));
    const Sizes sizes = t.sizes();
    require(is_countable(sizes.data(), static_cast<int64_t>(sizes.size())), argument, kCountable, t);
    if (!is_in_storage(t))
      fail(argument, "a tensor whose storage holds it", text(describe(t), " in a storage of ", storage_bytes(t), " bytes"));
  }

  // Of a product whose M and N are known.
  void result(const LinearProblem& p) const {
    const int64_t sizes[] = {p.M, p.N};
    if (!is_countable(sizes, 2))
      fail(anchor_name_, text("[..., K] with so few rows that the result is ", kCountable), text(p.M, " rows for N = ", p.N));
  }

  const char* op_;
  const char* anchor_name_;
  const Tensor& anchor_;
  const std::pair<int32_t, int32_t> device_;
};

LinearProblem int4_linear(const char* op, const Tensor& input, const Tensor& weight, const Tensor& scale,
                          const Tensor& zero_point, const Tensor* bias) {
  const Checker check(op, "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.int4(p, weight, scale, zero_point);
  if (bias != nullptr) check.bias(p, *bias);
  return p;
}

// Codes of 8 bits under an input of high precision.
LinearProblem weight_only_8bit(const char* op, bool weight_ok, const char* weight_dtypes, const Tensor& input,
                               const Tensor& weight, const Tensor& scale, const OptionalTensor& bias) {
  const Checker check(op, "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.weight8(p, weight_ok, weight_dtypes, weight);
  check.row_scale(p, "scale", is_high_precision(dtype_of(scale)), kHighPrecision, scale);
  if (bias) check.bias(p, *bias);
  return p;
}

LinearProblem weight_only_blockwise(const char* op, bool weight_ok, const char* weight_dtypes, const Tensor& input,
                                    const Tensor& weight, const Tensor& scale, const Integers& block_size,
                                    const OptionalTensor& bias) {
  const Checker check(op, "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.weight8(p, weight_ok, weight_dtypes, weight);
  check.block_scale(p, "scale", scale, "block_size", block_size);
  if (bias) check.bias(p, *bias);
  return p;
}

// What a dequantisation gives where it is not asked for a dtype.
ScalarType dequantized_dtype(const LinearProblem& p) { return is_high_precision(p.scale) ? p.scale : ScalarType::Float; }

void check_int8_depth(const Checker& check, const LinearProblem& p, ScalarType operands, const Tensor& input) {
  check.require(operands != ScalarType::Char || p.K <= kInt8MaxK, "input",
                text("[..., K] with K <= ", kInt8MaxK, ", where an int32 sum still fits"), input);
}

// The scales of an input that is quantised already, [..., columns].
void check_input_scale(const Checker& check, const Tensor& input, const Tensor& scale, const char* shape, int64_t columns) {
  check.operand("input_scale", scale);
  bool rows_match = scale.dim() == input.dim() && scale.size(input.dim() - 1) == columns;
  for (int64_t d = 0; rows_match && d + 1 < input.dim(); ++d) rows_match = scale.size(d) == input.size(d);
  check.require(dtype_of(scale) == ScalarType::Float && rows_match, "input_scale",
                text("float32 ", shape, " with the leading dimensions of input, ", [&] { return list(input.sizes()); }), scale);
}

}  // namespace

LinearProblem check_bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  return int4_linear("bf16i4bf16_rowwise", input, weight, scale, zero_point, nullptr);
}

LinearProblem check_bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                            const Tensor& zero_point, const Tensor& bias) {
  return int4_linear("bf16i4bf16_rowwise_bias", input, weight, scale, zero_point, &bias);
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
  LinearProblem p{};
  check.require(is_8bit(dtype_of(weight)) && weight.dim() == 2 && weight.size(1) > 0, "weight", text(k8Bit, " [N, K] with K > 0"),
                weight);
  p.K = weight.size(1);
  check.weight8(p, true, k8Bit, weight);
  check.row_scale(p, "scale", is_high_precision(dtype_of(scale)), kHighPrecision, scale);
  p.output = dtype.value_or(p.scale);
  check.dtype(is_high_precision(p.output), "dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_int8_mm(const Tensor& input, const Tensor& weight) {
  const Checker check("int8_mm", "input", input);
  LinearProblem p = check.input(dtype_of(input) == ScalarType::Char, "int8");
  check_int8_depth(check, p, p.input, input);
  check.weight8(p, dtype_of(weight) == ScalarType::Char, "int8", weight);
  p.output = ScalarType::Int;
  return p;
}

LinearProblem check_scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                                      const Tensor& weight_scale, const OptionalTensor& bias,
                                      std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_rowwise", "input", input);
  LinearProblem p = check.input(is_8bit(dtype_of(input)), k8Bit);
  check_int8_depth(check, p, p.input, input);
  check.weight8(p, dtype_of(weight) == p.input, text("of input's dtype, ", dtype_name(p.input), ","), weight);
  check_input_scale(check, input, input_scale, "[..., 1]", 1);
  check.row_scale(p, "weight_scale", dtype_of(weight_scale) == ScalarType::Float, "float32", weight_scale);
  if (bias) check.bias(p, *bias);
  p.output = out_dtype.value_or(ScalarType::BFloat16);
  check.dtype(is_high_precision(p.output), "out_dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                          const OptionalTensor& bias) {
  const Checker check("scaled_linear_rowwise", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.weight8(p, is_8bit(dtype_of(weight)), k8Bit, weight);
  check_int8_depth(check, p, storage(p.code), input);
  check.row_scale(p, "weight_scale", dtype_of(weight_scale) == ScalarType::Float, "float32", weight_scale);
  if (bias) check.bias(p, *bias);
  return p;
}

LinearProblem check_bf16i8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                         const Integers& block_size, const OptionalTensor& bias) {
  const bool weight_ok = dtype_of(weight) == ScalarType::Char;
  return weight_only_blockwise("bf16i8bf16_blockwise", weight_ok, "int8", input, weight, scale, block_size, bias);
}

LinearProblem check_bf16f8bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                         const Integers& block_size, const OptionalTensor& bias) {
  const bool weight_ok = is_float8(dtype_of(weight));
  return weight_only_blockwise("bf16f8bf16_blockwise", weight_ok, "float8_e4m3fn or float8_e5m2", input, weight, scale,
                               block_size, bias);
}

LinearProblem check_bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                                           const Integers& block_size, const OptionalTensor& global_scale,
                                           const OptionalTensor& bias) {
  const Checker check("bf16lut4bf16_blockwise", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.lut4(p, weight, table, global_scale);
  check.block_scale(p, "scale", scale, "block_size", block_size);
  if (bias) check.bias(p, *bias);
  return p;
}

LinearProblem check_dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                                         std::optional<ScalarType> dtype) {
  const Checker check("dequantize_blockwise", "weight", weight);
  LinearProblem p{};
  check.require(is_8bit(dtype_of(weight)) && weight.dim() == 2 && weight.size(1) > 0, "weight", text(k8Bit, " [N, K] with K > 0"),
                weight);
  p.K = weight.size(1);
  check.weight8(p, true, k8Bit, weight);
  check.block_scale(p, "scale", scale, "block_size", block_size);
  p.output = dtype.value_or(dequantized_dtype(p));
  check.dtype(is_high_precision(p.output), "dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                                    const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const Checker check("dequantize_lut4", "weight", weight);
  LinearProblem p{};
  check.lut4(p, weight, table, global_scale);
  check.block_scale(p, "scale", scale, "block_size", block_size);
  p.output = dtype.value_or(dequantized_dtype(p));
  check.dtype(is_high_precision(p.output), "dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size, bool power_of_two) {
  const Checker check("quantize_blockwise", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
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
  check_int8_depth(check, p, p.input, input);
  check.weight8(p, dtype_of(weight) == p.input, text("of input's dtype, ", dtype_name(p.input), ","), weight);
  check.input_block(p, "input_block", input_block);
  check_input_scale(check, input, input_scale, "[..., ceil(K/block_k)]", ceil_div(p.K, p.input_group_size));
  check.block_scale(p, "weight_scale", weight_scale, "weight_block", weight_block);
  if (bias) check.bias(p, *bias);
  p.output = out_dtype.value_or(ScalarType::BFloat16);
  check.dtype(is_high_precision(p.output), "out_dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_scaled_linear_blockwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                            const Integers& input_block, const Integers& weight_block,
                                            const OptionalTensor& bias) {
  const Checker check("scaled_linear_blockwise", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.weight8(p, is_8bit(dtype_of(weight)), k8Bit, weight);
  check_int8_depth(check, p, storage(p.code), input);
  check.input_block(p, "input_block", input_block);
  check.block_scale(p, "weight_scale", weight_scale, "weight_block", weight_block);
  p.power_of_two = p.scale == ScalarType::Float8_e8m0fnu;  // scales of one kind on both sides
  if (bias) check.bias(p, *bias);
  return p;
}

LinearProblem check_scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                                   const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const Checker check("scaled_mm_int4", "input", input);
  const ScalarType dtype = dtype_of(input);
  LinearProblem p = check.input(dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn, kInt4Input);
  check_int8_depth(check, p, dtype, input);
  check.int4(p, weight, scale, zero_point);
  check_input_scale(check, input, input_scale, "[..., 1]", 1);
  if (bias) check.bias(p, *bias);
  p.output = out_dtype.value_or(ScalarType::BFloat16);
  check.dtype(is_high_precision(p.output), "out_dtype", kHighPrecision, p.output);
  return p;
}

LinearProblem check_scaled_linear_int4(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                       const OptionalTensor& bias, std::optional<ScalarType> input_dtype) {
  const Checker check("scaled_linear_int4", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  const ScalarType dtype = input_dtype.value_or(ScalarType::Char);
  check.dtype(dtype == ScalarType::Char || dtype == ScalarType::Float8_e4m3fn, "input_dtype", kInt4Input, dtype);
  check_int8_depth(check, p, dtype, input);
  check.int4(p, weight, scale, zero_point);
  if (bias) check.bias(p, *bias);
  return p;
}

LinearProblem check_quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const Checker check("quantize_rowwise", "input", input);
  LinearProblem p = check.input(is_high_precision(dtype_of(input)), kHighPrecision);
  check.dtype(is_8bit(dtype), "dtype", k8Bit, dtype);
  p.output = dtype;
  return p;
}

LinearProblem check_dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                    std::optional<ScalarType> dtype) {
  const Checker check("dequantize_int4", "weight", weight);
  LinearProblem p{};
  check.int4(p, weight, scale, zero_point);
  p.output = dtype.value_or(p.scale);
  check.dtype(is_high_precision(p.output), "dtype", kHighPrecision, p.output);
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
