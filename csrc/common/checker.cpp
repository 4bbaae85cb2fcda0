#include "common/checker.h"

#include <algorithm>
#include <initializer_list>

#include "common/int4pack.h"
#include "common/sizes.h"

namespace aoext {
namespace {

constexpr int64_t kInt8MaxK = 131071;  // 128 · 128 · K still fits in an int32
constexpr const char* kBlockScale = "float32, bfloat16, float16, float8_e8m0fnu (or uint8 exponents) or float8_e4m3fn";

}  // namespace

bool has_shape(const LinearProblem& p, const Tensor& t, Shape shape) {
  const int64_t first = p.experts > 0 ? 1 : 0;
  if (t.dim() != first + static_cast<int64_t>(shape.size()) || (first == 1 && t.size(0) != p.experts)) return false;
  int64_t d = first;
  for (const int64_t size : shape)
    if (t.size(d++) != size && size != kAny) return false;
  return true;
}

std::string shape_text(const LinearProblem& p, std::string_view names, Shape shape) {
  std::ostringstream out;
  out << " [" << (p.experts > 0 ? "E, " : "") << names << "] = [";
  if (p.experts > 0) out << p.experts << ", ";
  const char* separator = "";
  for (const int64_t size : shape) {
    out << separator << (size == kAny ? "*" : std::to_string(size));
    separator = ", ";
  }
  out << "]";
  return out.str();
}

Checker::Checker(const char* op, const char* anchor_name, const Tensor& anchor)
    : op_(op), anchor_name_(anchor_name), anchor_(anchor), device_((memory(anchor_name, anchor), device_of(anchor))) {}

void Checker::operand(const char* argument, const Tensor& t) const {
  memory(argument, t);
  if (device_of(t) != device_)
    fail(argument, text("on the device of ", anchor_name_, ", ", device_name(anchor_)), device_name(t));
}

void Checker::contiguous(const char* argument, const Tensor& t) const {
  if (t.is_contiguous()) return;
  fail(argument, "contiguous", text(describe(t), " with strides ", list(t.strides())));
}

LinearProblem Checker::input_of_any_dtype() const {
  LinearProblem p{};
  p.K = anchor_.size(anchor_.dim() - 1);
  require(p.K > 0, "input", "[..., K] with K > 0", anchor_);
  p.M = 1;
  for (int64_t d = 0; d + 1 < anchor_.dim(); ++d) p.M *= anchor_.size(d);
  p.input = p.output = dtype_of(anchor_);
  return p;
}

void Checker::experts(LinearProblem& p, const OptionalTensor& offsets) const {
  if (!offsets) return;
  require(anchor_.dim() == 2, "input", "[T, K] beside offsets", anchor_);
  operand("offsets", *offsets);
  require(dtype_of(*offsets) == ScalarType::Int && offsets->dim() == 1 && offsets->size(0) > 0, "offsets",
          "int32 [E], for each expert where its rows end, E > 0", *offsets);
  contiguous("offsets", *offsets);
  p.experts = offsets->size(0);
}

Code Checker::code(int64_t code) const {
  if (!is_code(code)) fail("code", text("one of aoext.Code, 0 to ", std::size(kFormats) - 1), std::to_string(code));
  return static_cast<Code>(code);
}

void Checker::absent(const char* argument, const Tensor* t, const Format& format) const {
  if (t != nullptr) fail(argument, text("None for ", format.name, " weights"), describe(*t));
}

void Checker::weight(LinearProblem& p, const Weight& w, const OptionalIntegers& block_size) const {
  const Format& format = format_of(p.code);
  if (!format.has_table) {
    absent("table", w.table, format);
    absent("global_scale", w.global_scale, format);
  }
  if (format.zero == Format::Zero::none) absent("zero_point", w.zero_point, format);
  values(p, w.values);
  if (format.has_table) table(p, w);
  if (is_by_groups(p.code)) return groups(p, w, block_size);
  block_scale(p, "scale", w.scale, "block_size", block_size);
  if (w.zero_point != nullptr) block_zero_point(p, w.scale, *w.zero_point);
}

void Checker::values(LinearProblem& p, const Tensor& weight) const {
  const Format& format = format_of(p.code);
  const int64_t codes = format.codes_a_byte;
  const bool dtype_ok = dtype_of(weight) == format.storage;
  const std::string_view names = codes == 1 ? "N, K" : codes == 2 ? "N, K/2" : "N, K/4";
  if (p.K == 0) {
    require(dtype_ok && weight.dim() == 2 && weight.size(1) > 0, "weight",
            text(dtype_name(format.storage), " [", names, "] with K > 0"), weight);
    p.K = codes * weight.size(1);
  } else {
    require(p.K % codes == 0, "input",
            text(p.experts > 0 ? "[T" : "[...", ", K] with K ", codes == 2 ? "even" : "a multiple of 4"), anchor_);
    operand("weight", weight);
    require(dtype_ok && has_shape(p, weight, {kAny, p.K / codes}), "weight",
            text(
                dtype_name(format.storage), [&] { return shape_text(p, names, {kAny, p.K / codes}); },
                " for an input with K = ", p.K),
            weight);
  }
  contiguous("weight", weight);
  p.N = weight.size(weight.dim() - 2);
  result(p);
}

void Checker::table(LinearProblem& p, const Weight& w) const {
  if (w.table == nullptr) fail("table", "float32 [16]", "None");
  operand("table", *w.table);
  require(dtype_of(*w.table) == ScalarType::Float && w.table->dim() == 1 && w.table->size(0) == 16, "table", "float32 [16]",
          *w.table);
  contiguous("table", *w.table);
  p.has_global_scale = w.global_scale != nullptr;
  if (w.global_scale == nullptr) return;
  operand("global_scale", *w.global_scale);
  require(dtype_of(*w.global_scale) == ScalarType::Float && w.global_scale->numel() == 1, "global_scale",
          "float32 with one element", *w.global_scale);
}

void Checker::groups(LinearProblem& p, const Weight& w, const OptionalIntegers& block_size) const {
  const Tensor& scale = w.scale;
  operand("scale", scale);
  const int64_t groups = has_shape(p, scale, {kAny, p.N}) ? scale.size(scale.dim() - 2) : 0;
  require(is_high_precision(dtype_of(scale)) && groups > 0 && p.K % groups == 0, "scale",
          text(
              kHighPrecision, [&] { return shape_text(p, "K/group_size, N", {kAny, p.N}); },
              " with a group_size that divides K = ", p.K),
          scale);
  contiguous("scale", scale);
  p.scale = dtype_of(scale);
  p.group_size = p.K / groups;
  const auto described = [&] { return describe(scale); };
  const auto must_be = text("of scale's dtype and shape, ", described);
  if (w.zero_point == nullptr) fail("zero_point", must_be, "None");
  operand("zero_point", *w.zero_point);
  require(dtype_of(*w.zero_point) == p.scale && has_shape(p, *w.zero_point, {groups, p.N}), "zero_point", must_be, *w.zero_point);
  contiguous("zero_point", *w.zero_point);
  p.has_zero_point = true;
  if (block_size && (block_size->size() != 2 || (*block_size)[0] != 1 || (*block_size)[1] != p.group_size))
    fail("block_size", text("[1, ", p.group_size, "], as K = ", p.K, " and the ", groups, " groups of scale say"),
         list(*block_size));
}

void Checker::packed_weight(LinearProblem& p, const Tensor& weight) const {
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

void Checker::scale_and_zero(LinearProblem& p, int64_t group_size, const Tensor& t) const {
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

void Checker::row_scale(LinearProblem& p, const char* argument, bool dtype_ok, const char* dtypes, const Tensor& scale) const {
  operand(argument, scale);
  require(dtype_ok && scale.dim() == 2 && scale.size(0) == p.N && scale.size(1) == 1, argument,
          text(dtypes, " [N, 1] = [", p.N, ", 1]"), scale);
  contiguous(argument, scale);
  p.scale = dtype_of(scale);
}

void Checker::input_block(LinearProblem& p, const char* argument, const OptionalIntegers& block) const {
  if (block && (block->size() != 2 || (*block)[0] != 1 || (*block)[1] < 1))
    fail(argument, "[1, block_k], block_k positive", list(*block));
  p.input_group_size = block ? std::min((*block)[1], p.K) : p.K;
}

void Checker::whole_rows(const LinearProblem& p, const char* argument) const {
  if (is_by_groups(p.code) && p.input_group_size != p.K)
    fail(argument, text("None or [1, K] for ", format_of(p.code).name, " weights"), text("[1, ", p.input_group_size, "]"));
}

void Checker::block_scale(LinearProblem& p, const char* argument, const Tensor& scale, const char* block_argument,
                          const OptionalIntegers& block) const {
  if (block && (block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1))
    fail(block_argument, "[block_n, block_k], both positive", list(*block));
  const int64_t block_n = block ? (*block)[0] : 1, block_k = block ? (*block)[1] : p.K;
  p.block_n = std::min(block_n, std::max<int64_t>(p.N, 1)), p.group_size = std::min(block_k, p.K);
  const int64_t rows = ceil_div(p.N, block_n), columns = ceil_div(p.K, block_k);
  operand(argument, scale);
  require(is_block_scale(dtype_of(scale)) && has_shape(p, scale, {rows, columns}), argument,
          text(kBlockScale, [&] { return shape_text(p, "ceil(N/block_n), ceil(K/block_k)", {rows, columns}); }), scale);
  contiguous(argument, scale);
  p.scale = dtype_of(scale) == ScalarType::Byte ? ScalarType::Float8_e8m0fnu : dtype_of(scale);
}

void Checker::block_zero_point(LinearProblem& p, const Tensor& scale, const Tensor& zero_point) const {
  require(is_high_precision(p.scale), "scale", text(kHighPrecision, " beside zero points"), scale);
  operand("zero_point", zero_point);
  const auto same_shape = [&] {
    bool same = zero_point.dim() == scale.dim();
    for (int64_t d = 0; same && d < scale.dim(); ++d) same = zero_point.size(d) == scale.size(d);
    return same;
  };
  require(dtype_of(zero_point) == storage(p.code) && same_shape(), "zero_point",
          text("of weight's dtype and scale's shape, ", dtype_name(storage(p.code)), " ", [&] { return list(scale.sizes()); }),
          zero_point);
  contiguous("zero_point", zero_point);
  p.subtracts_zero_point = true;
}

void Checker::input_scale(const Tensor& scale, const char* shape, int64_t columns) const {
  operand("input_scale", scale);
  const int64_t last = anchor_.dim() - 1;
  bool rows_match = scale.dim() == anchor_.dim() && scale.size(last) == columns;
  for (int64_t d = 0; rows_match && d < last; ++d) rows_match = scale.size(d) == anchor_.size(d);
  require(dtype_of(scale) == ScalarType::Float && rows_match, "input_scale",
          text("float32 ", shape, " with the leading dimensions of input, ", [&] { return list(anchor_.sizes()); }), scale);
}

void Checker::int8_depth(const LinearProblem& p, ScalarType operands) const {
  require(operands != ScalarType::Char || p.K <= kInt8MaxK, "input",
          text("[..., K] with K <= ", kInt8MaxK, ", where an int32 sum still fits"), anchor_);
}

void Checker::bias(LinearProblem& p, const OptionalTensor& bias) const {
  if (!bias) return;
  operand("bias", *bias);
  require(is_high_precision(dtype_of(*bias)) && has_shape(p, *bias, {p.N}), "bias",
          text(kHighPrecision, [&] { return shape_text(p, "N", {p.N}); }), *bias);
  p.has_bias = true;
  p.bias = dtype_of(*bias);
}

void Checker::output(LinearProblem& p, const char* argument, ScalarType output) const {
  dtype(is_high_precision(output), argument, kHighPrecision, output);
  p.output = output;
}

void Checker::memory(const char* argument, const Tensor& t) const {
  if (!t.defined()) fail(argument, "a tensor", "None");
  const std::optional<Strided> lies = strided(t);
  if (!lies) fail(argument, "a dense (strided) tensor", text("a tensor of another layout, ", describe(t)));
  require(is_countable(lies->sizes.data(), static_cast<int64_t>(lies->sizes.size())), argument, kCountable, t);
  if (!is_in_storage(t, *lies))
    fail(argument, "a tensor whose storage holds it", text(describe(t), " in a storage of ", storage_bytes(t), " bytes"));
}

void Checker::result(const LinearProblem& p) const {
  const int64_t sizes[] = {p.M, p.N};
  if (!is_countable(sizes, 2))
    fail(anchor_name_, text("[..., K] with so few rows that the result is ", kCountable), text(p.M, " rows for N = ", p.N));
}

}  // namespace aoext
