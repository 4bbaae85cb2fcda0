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
  values(p, w.values);
  if (format.has_table) table(p, w);
  if (format.zero == Format::Zero::none && !p.has_nested_scale) absent("zero_point", w.zero_point, format);
  if (is_by_groups(p.code)) return groups(p, w, block_size);
  if (has_scales_inside(p.code)) return scales_inside(p, w, block_size);
  block_scale(p, "scale", w.scale, "block_size", block_size);
  if (p.has_nested_scale) return nested_scales(p, w);
  if (w.zero_point != nullptr) block_zero_point(p, w.scale, *w.zero_point);
}

void Checker::values(LinearProblem& p, const Tensor& weight) const {
  const Format& format = format_of(p.code);
  const Layout& layout = aoext::layout(p.code);
  const bool in_blocks = layout.bytes > 1;
  const bool dtype_ok = dtype_of(weight) == format.storage;
  const auto names = [&] {
    std::string names = layout.values == 1 ? "N, K" : "N, K/" + std::to_string(layout.values);
    return in_blocks ? names + ", " + std::to_string(layout.bytes) : names;
  };
  const auto has_values = [&](int64_t blocks) {
    return in_blocks ? has_shape(p, weight, {kAny, blocks, layout.bytes}) : has_shape(p, weight, {kAny, blocks});
  };
  if (p.K == 0) {
    const bool shape_ok = has_values(kAny) && weight.size(1) > 0;
    require(dtype_ok && shape_ok, "weight", text(dtype_name(format.storage), " [", names, "] with K > 0"), weight);
    p.K = layout.values * weight.size(1);
  } else {
    require(p.K % layout.values == 0, "input",
            text(p.experts > 0 ? "[T" : "[...", ", K] with K ",
                 [&] { return layout.values == 2 ? "even" : "a multiple of " + std::to_string(layout.values); }),
            anchor_);
    operand("weight", weight);
    const int64_t blocks = p.K / layout.values;
    const auto shape = [&] {
      return in_blocks ? shape_text(p, names(), {kAny, blocks, layout.bytes}) : shape_text(p, names(), {kAny, blocks});
    };
    require(dtype_ok && has_values(blocks), "weight", text(dtype_name(format.storage), shape, " for an input with K = ", p.K),
            weight);
  }
  contiguous("weight", weight);
  p.N = weight.size(p.experts > 0 ? 1 : 0);
  result(p);
}

void Checker::table(LinearProblem& p, const Weight& w) const {
  constexpr int64_t kNested = NestedScales::kValues + NestedScales::kCodes;
  const auto must_be = text("float32 [", NestedScales::kValues, "], or [", kNested, "] of nested scales");
  if (w.table == nullptr) fail("table", must_be, "None");
  operand("table", *w.table);
  const int64_t values = w.table->dim() == 1 ? w.table->size(0) : 0;
  require(dtype_of(*w.table) == ScalarType::Float && (values == NestedScales::kValues || values == kNested), "table", must_be,
          *w.table);
  contiguous("table", *w.table);
  p.has_nested_scale = values == kNested;
  if (!p.has_nested_scale && w.global_scale != nullptr) global_scale(p, *w.global_scale);
}

void Checker::global_scale(LinearProblem& p, const Tensor& scale) const {
  operand("global_scale", scale);
  p.global_scales = scale.numel();
  const bool of_each = p.experts > 0 && p.global_scales == p.experts && scale.size(0) == p.experts;
  require(dtype_of(scale) == ScalarType::Float && (p.global_scales == 1 || of_each), "global_scale",
          text("float32 with one element",
               [&] { return p.experts > 0 ? " or [E] = [" + std::to_string(p.experts) + "]" : std::string(); }),
          scale);
  contiguous("global_scale", scale);
}

void Checker::nested_scales(LinearProblem& p, const Weight& w) const {
  require(dtype_of(w.scale) == ScalarType::Byte && p.block_n == 1 && p.K % p.group_size == 0, "scale",
          text("uint8 [N, K/block_k] with blocks [1, block_k] that divide K = ", p.K, ", beside a table of nested scales"),
          w.scale);
  const NestedScales nested(p.K / p.group_size);
  const auto floats = [&](const char* argument, const Tensor* t, std::string_view names, Shape shape) {
    const auto of_shape = [&] { return shape_text(p, names, shape); };
    const auto must_be = text("float32", of_shape, " beside nested scales");
    if (t == nullptr) fail(argument, must_be, "None");
    operand(argument, *t);
    require(dtype_of(*t) == ScalarType::Float && has_shape(p, *t, shape), argument, must_be, *t);
    contiguous(argument, *t);
  };
  floats("global_scale", w.global_scale, "ceil(N/rows), columns", {ceil_div(p.N, nested.rows), nested.columns});
  floats("zero_point", w.zero_point, "1", {1});
  p.scale = ScalarType::Float;
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
  block_of_groups(p, block_size);
}

void Checker::block_of_groups(const LinearProblem& p, const OptionalIntegers& block_size) const {
  if (!block_size || (block_size->size() == 2 && (*block_size)[0] == 1 && (*block_size)[1] == p.group_size)) return;
  const auto why = [&]() -> std::string {
    if (has_scales_inside(p.code)) return std::string(" of ") + format_of(p.code).name;
    return ", as K = " + std::to_string(p.K) + " and the " + std::to_string(p.K / p.group_size) + " groups of scale say";
  };
  fail("block_size", text("[1, ", p.group_size, "]", why), list(*block_size));
}

void Checker::scales_inside(LinearProblem& p, const Weight& w, const OptionalIntegers& block_size) const {
  operand("scale", w.scale);
  require(dtype_of(w.scale) == ScalarType::Float && has_shape(p, w.scale, {1}), "scale",
          text("float32", [&] { return shape_text(p, "1", {1}); }), w.scale);
  contiguous("scale", w.scale);
  p.scale = ScalarType::Float;
  p.group_size = layout(p.code).group;
  block_of_groups(p, block_size);
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
