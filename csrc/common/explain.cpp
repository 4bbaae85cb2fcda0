#include "common/explain.h"

#include <functional>
#include <map>
#include <stdexcept>

namespace aoext {
namespace {

using Tensors = std::vector<Tensor>;

struct Entry {
  size_t tensors;  // that the operator needs
  std::function<LinearProblem(const Tensors&, const Option&)> check;
};

OptionalTensor optional(const Tensors& t, size_t i) { return i < t.size() ? OptionalTensor(t[i]) : std::nullopt; }

// Every dtype is explained alike.
LinearProblem check_quantize(const Tensors& t, const Option& o) {
  const QuantizeProblem q = check_quantize_rowwise(t[0], o.dtype.value_or(ScalarType::Char));
  LinearProblem p{};
  p.M = q.M, p.K = q.K, p.input = q.input, p.output = q.output;
  return p;
}

// An explanation's group size follows from the tensors.
LinearProblem check_int4pack_mm(const Tensors& t, const Option& o) {
  const int64_t groups = t[2].dim() > 0 ? t[2].size(0) : 0;
  const int64_t K = t[0].dim() > 0 ? t[0].size(t[0].dim() - 1) : 0;
  return check_weight_int4pack_mm(t[0], t[1], o.number.value_or(groups > 0 ? K / groups : 0), t[2]);
}

// Any inner_k_tiles is explained alike.
LinearProblem check_int4pack(const Tensors& t, const Option& o) {
  return check_convert_weight_to_int4pack(t[0], o.number.value_or(2));
}

const std::map<std::string, Entry>& table() {
  static const std::map<std::string, Entry> entries{
      {"bf16i4bf16_rowwise", {4, [](auto& t, auto&) { return check_bf16i4bf16_rowwise(t[0], t[1], t[2], t[3]); }}},
      {"bf16i4bf16_rowwise_bias",
       {5, [](auto& t, auto&) { return check_bf16i4bf16_rowwise_bias(t[0], t[1], t[2], t[3], t[4]); }}},
      {"bf16i8bf16_rowwise", {3, [](auto& t, auto&) { return check_bf16i8bf16_rowwise(t[0], t[1], t[2]); }}},
      {"bf16i8bf16_rowwise_bias", {4, [](auto& t, auto&) { return check_bf16i8bf16_rowwise_bias(t[0], t[1], t[2], t[3]); }}},
      {"bf16f8bf16_rowwise", {3, [](auto& t, auto&) { return check_bf16f8bf16_rowwise(t[0], t[1], t[2]); }}},
      {"bf16f8bf16_rowwise_bias", {4, [](auto& t, auto&) { return check_bf16f8bf16_rowwise_bias(t[0], t[1], t[2], t[3]); }}},
      {"int8_mm", {2, [](auto& t, auto&) { return check_int8_mm(t[0], t[1]); }}},
      {"scaled_mm_rowwise",
       {4, [](auto& t, auto& o) { return check_scaled_mm_rowwise(t[0], t[1], t[2], t[3], optional(t, 4), o.dtype); }}},
      {"scaled_linear_rowwise",
       {3, [](auto& t, auto&) { return check_scaled_linear_rowwise(t[0], t[1], t[2], optional(t, 3)); }}},
      {"quantize_rowwise", {1, check_quantize}},
      {"convert_weight_to_int4pack", {1, check_int4pack}},
      {"weight_int4pack_mm", {3, check_int4pack_mm}},
      {"dequantize_int4", {3, [](auto& t, auto& o) { return check_dequantize_int4(t[0], t[1], t[2], o.dtype); }}},
  };
  return entries;
}

}  // namespace

LinearProblem check_by_name(const std::string& op, const Tensors& tensors, const Option& option) {
  const auto entry = table().find(op);
  if (entry == table().end()) throw std::runtime_error("ao::_explain: operator must be one of the ao operators, got " + op);
  if (tensors.size() < entry->second.tensors)
    throw std::runtime_error("ao::_explain: " + op + " must come with " + std::to_string(entry->second.tensors) +
                             " tensors, got " + std::to_string(tensors.size()));
  return entry->second.check(tensors, option);
}

}  // namespace aoext
