// aoext.explain on a CPU: the plan that each operator would follow for these arguments.
#include <functional>
#include <map>
#include <stdexcept>

#include "cpu/isa.h"
#include "cpu/plan.h"

namespace aoext::cpu {
namespace {

using Tensors = std::vector<Tensor>;

struct Entry {
  size_t tensors;  // that the operator needs; a bias may follow
  std::function<std::string(const Tensors&)> explain;
};

std::string row_kernel(const char* what) { return std::string("cpu/") + kernels().name + ": " + what; }

OptionalTensor optional(const Tensors& t, size_t i) { return i < t.size() ? OptionalTensor(t[i]) : std::nullopt; }

const std::map<std::string, Entry>& table() {
  static const std::map<std::string, Entry> entries{
      {"bf16i4bf16_rowwise",
       {4, [](auto& t) { return describe(plan_weight_only(check_bf16i4bf16_rowwise(t[0], t[1], t[2], t[3]))); }}},
      {"bf16i4bf16_rowwise_bias",
       {5, [](auto& t) { return describe(plan_weight_only(check_bf16i4bf16_rowwise_bias(t[0], t[1], t[2], t[3], t[4]))); }}},
      {"bf16i8bf16_rowwise", {3, [](auto& t) { return describe(plan_weight_only(check_bf16i8bf16_rowwise(t[0], t[1], t[2]))); }}},
      {"bf16i8bf16_rowwise_bias",
       {4, [](auto& t) { return describe(plan_weight_only(check_bf16i8bf16_rowwise_bias(t[0], t[1], t[2], t[3]))); }}},
      {"bf16f8bf16_rowwise", {3, [](auto& t) { return describe(plan_weight_only(check_bf16f8bf16_rowwise(t[0], t[1], t[2]))); }}},
      {"bf16f8bf16_rowwise_bias",
       {4, [](auto& t) { return describe(plan_weight_only(check_bf16f8bf16_rowwise_bias(t[0], t[1], t[2], t[3]))); }}},
      {"int8_mm", {2, [](auto& t) { return describe(plan_scaled(check_int8_mm(t[0], t[1]))); }}},
      {"scaled_mm_rowwise",
       {4,
        [](auto& t) {
          return describe(plan_scaled(check_scaled_mm_rowwise(t[0], t[1], t[2], t[3], optional(t, 4), std::nullopt)));
        }}},
      {"scaled_linear_rowwise",
       {3, [](auto& t) { return describe(plan_scaled(check_scaled_linear_rowwise(t[0], t[1], t[2], optional(t, 3)))); }}},
      {"quantize_rowwise", {1, [](auto&) { return row_kernel("row by row"); }}},
      {"dequantize_int4", {3, [](auto&) { return row_kernel("row by row"); }}},
  };
  return entries;
}

std::string explain(const std::string& op, const Tensors& tensors) {
  const auto entry = table().find(op);
  if (entry == table().end()) throw std::runtime_error("ao::_explain: operator must be one of the ao operators, got " + op);
  if (tensors.size() < entry->second.tensors)
    throw std::runtime_error("ao::_explain: " + op + " must come with " + std::to_string(entry->second.tensors) +
                             " tensors, got " + std::to_string(tensors.size()));
  return entry->second.explain(tensors);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CPU, m) { m.impl("_explain", TORCH_BOX(&explain)); }

}  // namespace aoext::cpu
